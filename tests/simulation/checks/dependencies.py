"""Which transaction must precede which, and why: graphs that must have no cycle.

A writer is a transaction, or one message sent without one. `a` precedes `b` if

- `b` acknowledged a message of `a`, on a subscription to committed messages ("reads");
- `a` was known to be done before `b` was requested ("then"): its commit, or its message;
- `a` belongs to an earlier session of the same transactional id ("session");
- a topic in commit order has a message of `a` before one of `b`, when read from its start in the
  end ("log"), or when read by a client earlier ("seen").

In topics in log order, transactions that are open at the same time interleave, so only the first
three reasons count.

Each topic in commit order has its own graph (`on_topic`), which includes its plain messages. The
graph of all topics (`across_topics`) leaves plain messages out: a commit takes time, and a client
that has seen it on one topic may write to another before the commit gets there. All topics agree on
the order of one coordinator's transactions, except for topics that had to be told again of an end:
while a topic is being unloaded, other transactions overtake.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from checks.history import CommitOrdered, History, Logs, Read, Sent, Txn, was_committed

Writer = Txn | Sent
FOR_EVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Edge:
    before: Writer
    after: Writer
    kind: str
    evidence: str

    def __str__(self) -> str:
        return f"{name_of(self.before)} before {name_of(self.after)} ({self.kind}: {self.evidence})"


def name_of(writer: Writer) -> str:
    return writer.name if isinstance(writer, Txn) else writer.value


def on_topic(history: History, logs: Logs, topic: str) -> list[Edge]:
    """Edges among all committed transactions, and the messages of this topic in commit order."""
    by_place: list[Edge] = []
    for shown in _shown(history, logs):
        if shown.topic == topic:
            by_place += shown.edges(_of_transactions(shown.row))
            by_place += shown.edges(_with_plain_ones(shown.row, shown.log))
    txns = _committed(history, logs)
    writers: dict[Writer, None] = dict.fromkeys(txns)
    for edge in by_place:
        writers.update({edge.before: None, edge.after: None})
    return [*by_place, *_by_session(txns), *_by_time(list(writers))]


def across_topics(history: History, logs: Logs) -> list[Edge]:
    """Edges among all committed transactions, in any topic."""
    by_place: list[Edge] = []
    for shown in _shown(history, logs):
        by_coordinator: dict[int, list[Sent]] = defaultdict(list)
        for sent in _of_transactions(shown.row):
            by_coordinator[getattr(sent.txn.txn_id, "most", 0)].append(sent)
        for row in by_coordinator.values():
            by_place += (
                edge
                for edge in shown.edges(row)
                if (edge.after.txn_id, shown.topic) not in history.told_again
            )
    txns = _committed(history, logs)
    return [*_by_reading(history, txns), *by_place, *_by_session(txns), *_by_time(list(txns))]


def _committed(history: History, logs: Logs) -> dict[Txn, None]:
    visible = {read.value for log in logs.values() for read in log}
    return {txn: None for txn in history.txns if was_committed(txn, visible)}


def shortest_cycle(edges: Iterable[Edge]) -> list[Edge]:
    """A cycle with the fewest edges; empty if there is none."""
    following: dict[Writer, list[Edge]] = defaultdict(list)
    for edge in edges:
        if edge.before is not edge.after:
            following[edge.before].append(edge)
    _drop_what_leads_nowhere(following)
    cycles = (_cycle_through(start, following) for start in following)
    return min((cycle for cycle in cycles if cycle), key=len, default=[])


def _drop_what_leads_nowhere(following: dict[Writer, list[Edge]]) -> None:
    """The rest lies on cycles, or leads to one: usually nothing."""
    leading: dict[Writer, list[Writer]] = defaultdict(list)
    left = {writer: len(edges) for writer, edges in following.items()}
    for edges in following.values():
        for edge in edges:
            leading[edge.after].append(edge.before)
    ends = [writer for writer in leading if not left.get(writer)]
    while ends:
        for writer in leading[ends.pop()]:
            left[writer] -= 1
            if not left[writer]:
                del following[writer]
                ends.append(writer)


def _cycle_through(start: Writer, following: dict[Writer, list[Edge]]) -> list[Edge]:
    came_by: dict[Writer, Edge] = {}
    waiting = deque([start])
    while waiting:
        for edge in following.get(waiting.popleft(), ()):
            if edge.after not in came_by:
                came_by[edge.after] = edge
                waiting.append(edge.after)
            if edge.after is start:
                return _path_to(start, came_by)
    return []


def _path_to(start: Writer, came_by: dict[Writer, Edge]) -> list[Edge]:
    path = [came_by[start]]
    while path[-1].before is not start:
        path.append(came_by[path[-1].before])
    return path[::-1]


# --- why


def _by_reading(history: History, txns: Iterable[Txn]) -> Iterator[Edge]:
    uncommitted = {r.subscription for r in history.receivers if not r.committed_only}
    for txn in txns:
        for subscription, read in txn.acknowledged:
            sent = history.sent.get(read.value)
            if sent is None or sent.txn in (None, txn) or subscription in uncommitted:
                continue
            evidence = f"the latter acknowledged {read.value} on {subscription}"
            yield Edge(sent.txn, txn, "reads", evidence)


def _by_session(txns: Iterable[Txn]) -> Iterator[Edge]:
    by_id: dict[str, list[Txn]] = defaultdict(list)
    for txn in txns:
        if txn.session is not None:
            by_id[txn.session.transactional_id].append(txn)
    for name, of_id in by_id.items():
        by_number: dict[int, list[Txn]] = defaultdict(list)
        for txn in of_id:
            by_number[txn.session.number].append(txn)
        for earlier, later in pairwise(sorted(by_number)):
            evidence = f"sessions {earlier} and {later} of {name!r}"
            for one in by_number[earlier]:
                for other in by_number[later]:
                    yield Edge(one, other, "session", evidence)


@dataclass(frozen=True, slots=True)
class _Shown:
    """A topic in commit order as seen by a reader from its start."""

    topic: str
    kind: str
    where: str
    row: list[Sent]
    log: list[Sent]  # the whole log in the end

    def edges(self, row: Sequence[Sent]) -> Iterator[Edge]:
        return _by_place(row, self.kind, self.where)


def _shown(history: History, logs: Logs) -> Iterator[_Shown]:
    for ordered in history.commit_ordered:
        log = _first_ones(history, logs.get(ordered.topic, ()))
        row = [sent for sent in log if _is_within(sent, ordered)]
        yield _Shown(ordered.topic, "log", ordered.topic, row, row)
        for receiver in history.receivers:
            if receiver.subscription is not None or not receiver.committed_only:
                continue
            reads = [read for read in receiver.reads if read.topic == ordered.topic]
            row = [sent for sent in _first_ones(history, reads) if _is_within(sent, ordered)]
            where = f"{receiver.name} on {ordered.topic}"
            yield _Shown(ordered.topic, "seen", where, row, log)


def _of_transactions(row: Sequence[Sent]) -> list[Sent]:
    """The transactions' messages. Transactions do not interleave."""
    return [sent for sent in row if sent.txn is not None]


def _with_plain_ones(row: Sequence[Sent], log: Sequence[Sent]) -> list[Sent]:
    """Plain messages may come between those of a transaction that is copied in pieces. So only the
    transaction's last message counts.
    """
    last = {sent.txn: sent for sent in log if sent.txn is not None}
    return [sent for sent in row if sent.txn is None or last.get(sent.txn) is sent]


def _first_ones(history: History, reads: Sequence[Read]) -> list[Sent]:
    """The first occurrence of each message: without deduplication it may appear twice."""
    first = {read.value: history.sent.get(read.value) for read in reads}
    return [sent for sent in first.values() if sent is not None]


def _by_place(row: Sequence[Sent], kind: str, where: str) -> Iterator[Edge]:
    runs = [list(run) for _, run in groupby(row, _decided_with)]
    for one, other in pairwise(runs):
        for before in {sent.txn or sent: sent for sent in one}.values():
            for after in {sent.txn or sent: sent for sent in reversed(other)}.values():
                evidence = f"{before.value} before {after.value}, {where}"
                yield Edge(before.txn or before, after.txn or after, kind, evidence)


def _decided_with(sent: Sent) -> object:
    """The order within one decision does not matter."""
    if sent.txn is not None and sent.txn.group is not None:
        return sent.txn.group
    return sent.txn or sent


def _is_within(sent: Sent, ordered: CommitOrdered) -> bool:
    began = sent.asked if sent.txn is None else sent.txn.began
    if ordered.since is not None and (began is None or began <= ordered.since):
        return False
    return ordered.until is None or _done(sent.txn or sent) < ordered.until


def _asked(writer: Writer) -> int:
    asked = writer.commit_asked if isinstance(writer, Txn) else writer.asked
    return asked or 0


def _done(writer: Writer) -> int:
    done = writer.commit_heard if isinstance(writer, Txn) else writer.answered
    return done or FOR_EVER


def _by_time(writers: list[Writer]) -> Iterator[Edge]:
    """Edges from direct predecessors only; the others follow from them."""
    writers = sorted(writers, key=_done)
    done = [_done(writer) for writer in writers]
    for writer in writers:
        asked = _asked(writer)
        end = bisect_left(done, asked)
        latest = 0
        for index in range(end - 1, -1, -1):
            if done[index] < latest:
                break
            latest = max(latest, _asked(writers[index]))
            evidence = f"done at turn {done[index]}, asked for at {asked}"
            yield Edge(writers[index], writer, "then", evidence)
