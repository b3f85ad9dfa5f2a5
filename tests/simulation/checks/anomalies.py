"""Anomalies of transactions and messages, each named, with the shortest evidence.

Like `checks.promises`, a pure function of what clients did and saw, and of what the topics show at
rest. `checks.history` says how to add evidence.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain

from checks.dependencies import FOR_EVER, Edge, across_topics, on_topic, shortest_cycle
from checks.history import History, Logs, Outcome, Read, Sent, Session, Txn, was_committed


def anomalies(history: History, logs: Logs) -> list[str]:
    """The most telling one first."""
    visible = {read.value for log in logs.values() for read in log}
    return [
        *_contradictory_ends(history.txns),
        *_lost(history, visible),
        *_aborted_but_visible(history.txns, visible),
        *_fenced(history, visible),
        *_partial(history.txns, visible),
        *_read_before_the_commit(history),
        *_consumed_what_was_aborted(history, visible),
        *_duplicates(history, logs),
        *_acknowledged_twice(history.txns, visible),
        *_out_of_order(history, logs),
        *_sessions_out_of_order(history, logs),
        *_later_before_earlier(history, logs),
        *_cycles(history, logs),
    ]


def _contradictory_ends(txns: Iterable[Txn]) -> Iterator[str]:
    for txn in txns:
        if txn.commit is Outcome.DONE and txn.abort is Outcome.DONE:
            yield f"CONTRADICTION: {txn.name} was both committed and aborted"


def _lost(history: History, visible: set[str]) -> Iterator[str]:
    for sent in history.sent.values():
        promised = sent.outcome is Outcome.DONE and (sent.txn is None or sent.txn.committed)
        if promised and sent.value not in visible:
            yield f"LOSS: {sent.value} on {sent.topic} was acknowledged and is not there"


def _aborted_but_visible(txns: Iterable[Txn], visible: set[str]) -> Iterator[str]:
    for txn in txns:
        if txn.surely_aborted:
            for sent in txn.sent:
                if sent.value in visible:
                    yield f"ABORTED READ: {sent.value} of {txn.name} can be read"


def _fenced(history: History, visible: set[str]) -> Iterator[str]:
    """Actions of a session after it was told, or could have been, that it is not the newest."""
    for sent in history.sent.values():
        session = _session_of(sent)
        fenced = None if session is None else session.fenced
        if session is None or fenced is None or sent.value not in visible:
            continue
        what = f"of session {session.number} of {session.transactional_id!r}, fenced at {fenced}"
        if sent.asked is not None and sent.asked > fenced:
            yield f"FENCED WRITE: {sent.value}, sent at {sent.asked}, can be read: {what}"
        elif sent.txn is not None and (sent.txn.commit_asked or 0) > fenced:
            asked = f"whose commit was asked for at {sent.txn.commit_asked}"
            yield f"FENCED WRITE: {sent.value} of {sent.txn.name}, {asked}, can be read: {what}"


def _partial(txns: Iterable[Txn], visible: set[str]) -> Iterator[str]:
    """A transaction, or all transactions of one decision, are visible as a whole or not at all."""
    decided: dict[object, list[Txn]] = defaultdict(list)
    for txn in txns:
        decided[txn if txn.group is None else txn.group].append(txn)
    for members in decided.values():
        if all(txn.surely_aborted for txn in members):
            continue
        sent = [sent for txn in members for sent in txn.sent]
        there = [each.value for each in sent if each.value in visible]
        missing = [
            each.value
            for each in sent
            if each.value not in visible and each.outcome is Outcome.DONE
        ]
        if there and missing:
            names = " and ".join(txn.name for txn in members)
            yield f"PARTIAL TRANSACTION: {names} shows {there} but not {missing}"


def _read_before_the_commit(history: History) -> Iterator[str]:
    for receiver in history.receivers:
        if not receiver.committed_only:
            continue
        for read, turn in zip(receiver.reads, receiver.turns, strict=False):
            sent = history.sent.get(read.value)
            txn = None if sent is None else sent.txn
            if txn is not None and txn.commit_asked is not None and turn < txn.commit_asked:
                yield (
                    f"UNCOMMITTED READ: {receiver.name} was handed {read.value} at turn {turn}; "
                    f"the commit of {txn.name} was asked for at {txn.commit_asked}"
                )


def _consumed_what_was_aborted(history: History, visible: set[str]) -> Iterator[str]:
    uncommitted = {r.subscription for r in history.receivers if not r.committed_only}
    for txn in history.txns:
        if not was_committed(txn, visible):
            continue
        for subscription, read in txn.acknowledged:
            sent = history.sent.get(read.value)
            writer = None if sent is None else sent.txn
            if writer is not None and writer.surely_aborted and subscription not in uncommitted:
                yield (
                    f"ABORTED READ: {txn.name} has committed and consumed {read.value} of "
                    f"{writer.name}, which was aborted"
                )


def _duplicates(history: History, logs: Logs) -> Iterator[str]:
    counts = Counter(read.value for log in logs.values() for read in log)
    for value, count in counts.items():
        sent = history.sent.get(value)
        if count > 1 and sent is not None and sent.deduplicated:
            yield f"DUPLICATE: {value} is {count} times in {sent.topic}"


def _acknowledged_twice(txns: Iterable[Txn], visible: set[str]) -> Iterator[str]:
    owners: dict[tuple[str, Read], str] = {}
    for txn in txns:
        if not was_committed(txn, visible):
            continue
        for place in txn.acknowledged:
            owner = owners.setdefault(place, txn.name)
            if owner != txn.name:
                yield f"ACKNOWLEDGED TWICE: {place} by {owner} and by {txn.name}, both committed"


# --- order


def _first_occurrences(history: History, log: Iterable[Read]) -> Iterator[Sent]:
    """Without deduplication a message may appear again later."""
    for value in dict.fromkeys(read.value for read in log):
        if (sent := history.sent.get(value)) is not None:
            yield sent


def _out_of_order(history: History, logs: Logs) -> Iterator[str]:
    """Per producer and topic (or partition), first occurrences count up; in commit order they do so
    within one transaction.
    """
    commit_ordered = {ordered.topic for ordered in history.commit_ordered}
    for topic, log in logs.items():
        newest: dict[object, Sent] = {}
        for sent in _first_occurrences(history, log):
            txn = sent.txn if topic in commit_ordered else None
            before = newest.setdefault((sent.producer, txn), sent)
            if before.number > sent.number:
                yield f"ORDER: {sent.value} comes after {before.value} in {topic}"
            newest[sent.producer, txn] = sent


def _sessions_out_of_order(history: History, logs: Logs) -> Iterator[str]:
    """All writes of a session precede those of the next one."""
    for topic, log in logs.items():
        newest: dict[str, tuple[int, Sent]] = {}
        for sent in _first_occurrences(history, log):
            if (session := _session_of(sent)) is None:
                continue
            name, number = session.transactional_id, session.number
            newest_number, newest_sent = newest.setdefault(name, (number, sent))
            if newest_number > number:
                yield (
                    f"FENCED WRITE: {sent.value} of session {number} of {name!r} comes after "
                    f"{newest_sent.value} of session {newest_number} in {topic}"
                )
            else:
                newest[name] = number, sent


def _session_of(sent: Sent) -> Session | None:
    return sent.session or (sent.txn and sent.txn.session)


def _later_before_earlier(history: History, logs: Logs) -> Iterator[str]:
    """In log order, a message that was answered precedes those sent after the answer."""
    commit_ordered = {ordered.topic for ordered in history.commit_ordered}
    for topic, log in logs.items():
        if topic in commit_ordered:
            continue
        answered, earliest = FOR_EVER, ""  # of those after it
        for sent in reversed(list(_first_occurrences(history, log))):
            if answered < (sent.asked or 0):
                yield (
                    f"ORDER: {sent.value}, sent at turn {sent.asked}, stands before {earliest}, "
                    f"answered at {answered}, in {topic}"
                )
            if (sent.answered or FOR_EVER) < answered:
                answered, earliest = sent.answered or FOR_EVER, sent.value


def _cycles(history: History, logs: Logs) -> Iterator[str]:
    topics = dict.fromkeys(ordered.topic for ordered in history.commit_ordered)
    graphs = chain(
        (on_topic(history, logs, topic) for topic in topics), (across_topics(history, logs),)
    )
    for edges in graphs:
        if cycle := shortest_cycle(edges):
            yield f"{_kind_of(cycle)}: {', '.join(map(str, cycle))}"
            return


def _kind_of(cycle: list[Edge]) -> str:
    kinds = {edge.kind for edge in cycle}
    if kinds & {"log", "seen"}:
        return "COMMIT ORDER"
    return "FENCED WRITE" if "session" in kinds else "CIRCULAR READ"
