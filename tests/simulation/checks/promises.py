"""Holds what clients saw against what they were promised; every broken promise is one sentence.

`Logs` is the truth to compare with: each topic (or partition) read from its first message to its
last after everything has come to rest. What a transaction whose end nobody heard of did is
read off there too: all of it is visible, or none.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from checks.history import History, Outcome, Read, Sent, Txn

Logs = dict[str, list[Read]]


def violations(history: History, logs: Logs) -> list[str]:
    """Everything that is wrong, most telling first."""
    visible = {read.value for log in logs.values() for read in log}
    return [
        *history.failures,
        *_contradictory_ends(history.txns),
        *_lost(history, visible),
        *_aborted_but_visible(history.txns, visible),
        *_partial_transactions(history.txns, visible),
        *_unknown_values(history, logs),
        *_duplicates(history, logs),
        *_out_of_order(history, logs),
        *_reads_that_no_log_confirms(history, logs),
        *_readers_that_skipped(history, logs),
        *_acknowledged_twice(history.txns, visible),
    ]


def was_committed(txn: Txn, visible: set[str]) -> bool:
    """For a transaction with an unknown end: what it sent is visible."""
    if txn.committed or txn.surely_aborted:
        return txn.committed
    return any(sent.value in visible for sent in txn.sent)


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


def _partial_transactions(txns: Iterable[Txn], visible: set[str]) -> Iterator[str]:
    for txn in txns:
        if txn.committed or txn.surely_aborted:
            continue
        there = [s.value for s in txn.sent if s.value in visible]
        missing = [
            s.value for s in txn.sent if s.value not in visible and s.outcome is Outcome.DONE
        ]
        if there and missing:
            yield f"PARTIAL TRANSACTION: {txn.name} shows {there} but not {missing}"


def _unknown_values(history: History, logs: Logs) -> Iterator[str]:
    for read in _all(logs):
        sent = history.sent.get(read.value)
        if sent is None:
            yield f"INVENTED: {read.value!r} in {read.topic} was never sent"
        elif sent.outcome is Outcome.REFUSED:
            yield f"REFUSED BUT VISIBLE: {read.value} in {read.topic}"


def _duplicates(history: History, logs: Logs) -> Iterator[str]:
    counts = Counter(read.value for read in _all(logs))
    for value, count in counts.items():
        sent = history.sent.get(value)
        if count > 1 and sent is not None and sent.deduplicated:
            yield f"DUPLICATE: {value} is {count} times in {sent.topic}"


def _out_of_order(history: History, logs: Logs) -> Iterator[str]:
    """Per producer and topic (or partition), first occurrences count up."""
    for topic, log in logs.items():
        newest: dict[str, Sent] = {}
        seen: set[str] = set()
        for read in log:
            sent = history.sent.get(read.value)
            if sent is None or read.value in seen:
                continue
            seen.add(read.value)
            before = newest.setdefault(sent.producer, sent)
            if before.number > sent.number:
                yield f"ORDER: {sent.value} comes after {before.value} in {topic}"
            newest[sent.producer] = sent


def _reads_that_no_log_confirms(history: History, logs: Logs) -> Iterator[str]:
    """What anybody was handed at any time stays readable for ever, at the same place."""
    places = {(read.topic, read.message_id): read.value for read in _all(logs)}
    for receiver in history.receivers:
        for read in receiver.reads:
            now = places.get((read.topic, read.message_id))
            if now != read.value:
                yield (
                    f"UNCONFIRMED READ: {receiver.name} was handed {read.value} at "
                    f"{read.topic} {read.message_id}, where the log has {now}"
                )


def _readers_that_skipped(history: History, logs: Logs) -> Iterator[str]:
    """A reader is handed a topic's log from its start, without a gap, repetition or swap."""
    for receiver in history.receivers:
        if receiver.subscription is not None:
            continue
        by_topic: dict[str, list[Read]] = defaultdict(list)
        for read in receiver.reads:
            by_topic[read.topic].append(read)
        for topic, reads in by_topic.items():
            expected = logs.get(topic, [])[: len(reads)]
            if reads != expected:
                index = next(i for i, read in enumerate(reads) if read != _at(expected, i))
                yield (
                    f"SKIPPED: reader {receiver.name} was handed {reads[index]} as number "
                    f"{index}, where the log has {_at(expected, index)}"
                )


def _acknowledged_twice(txns: Iterable[Txn], visible: set[str]) -> Iterator[str]:
    owners: dict[tuple[str, Read], str] = {}
    for txn in txns:
        if not was_committed(txn, visible):
            continue
        for place in txn.acknowledged:
            owner = owners.setdefault(place, txn.name)
            if owner != txn.name:
                yield f"ACKNOWLEDGED TWICE: {place} by {owner} and by {txn.name}, both committed"


def never_consumed(history: History, subscription: str, logs: Iterable[list[Read]]) -> list[str]:
    """Messages of the logs that no consumer of the subscription was ever handed."""
    handed = {
        read.value
        for receiver in history.receivers
        if receiver.subscription == subscription
        for read in receiver.reads
    }
    return [
        f"NEVER DELIVERED: {read.value} of {read.topic} to {subscription}"
        for log in logs
        for read in log
        if read.value not in handed
    ]


def _all(logs: Logs) -> Iterator[Read]:
    for log in logs.values():
        yield from log


def _at(log: list[Read], index: int) -> Read | None:
    return log[index] if index < len(log) else None
