"""Checks what the only consumer of a subscription was handed against its moves."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from clients.navigator import Epoch, Held, Navigator, Place

from checks.history import Read, Txn

Log = list[Read]
Times = list[tuple[tuple[int, int], int]]


def position_violations(
    navigator: Navigator, log: Log, left: list[Read], times: Times
) -> list[str]:
    """`left`: what a fresh consumer is handed in the end. `times`: the position and publish time of
    every message of the topic, including aborted ones.
    """
    found: list[str] = []
    for number, epoch in enumerate(navigator.epochs):
        found += _not_in_order(epoch, number, log, times)
    found += _wrongly_left(navigator.epoch, log, left, times)
    return found


def _starts(epoch: Epoch, log: Log, times: Times) -> range:
    """The indexes of the log at which the epoch may have begun."""
    if epoch.loose:
        return range(len(log) + 1)
    if epoch.behind is not None:
        start = next((i for i, r in enumerate(log) if r.message_id > epoch.behind), len(log))
        return range(start, start + 1)
    assert epoch.since_ms is not None
    found = [_found(epoch.since_ms, end, log, times) for end in epoch.ends]
    return range(min(map(min, found)), max(map(max, found)) + 1)


def _found(since_ms: int, end: Place, log: Log, times: Times) -> tuple[int, int]:
    """The lowest and highest index of the log that a search may find, if the log ends at `end`.

    Messages are not quite in the order of their times, because resent ones keep theirs. The log
    does not have all of them either: a search by time may find an aborted message.
    """
    places = [read.message_id[:2] for read in log]
    later = [at for at, published_ms in times if published_ms >= since_ms and at <= end]
    earlier = [at for at, published_ms in times if published_ms < since_ms and at <= end]
    first = bisect_left(places, later[0]) if later else bisect_right(places, end)
    return first, bisect_right(places, earlier[-1]) if earlier else 0


def _not_in_order(epoch: Epoch, number: int, log: Log, times: Times) -> Iterator[str]:
    """First deliveries must be in the order of the log, without a gap."""
    if epoch.loose or not epoch.reads:
        return
    seen = [read for read in epoch.seen if not _left_out(read, epoch.behind)]
    starts = _starts(epoch, log, times)
    if any(log[start : start + len(seen)] == seen for start in starts):
        return
    expected = log[starts[0] : starts[0] + len(seen)]
    pairs = zip(seen, expected + [None] * len(seen), strict=False)
    index, got, wanted = next((i, g, w) for i, (g, w) in enumerate(pairs) if g != w)
    yield f"MOVED WRONGLY: epoch {number} was handed {got} as number {index}, expected {wanted}"


def _left_out(read: Read, behind: tuple[int, int, int] | None) -> bool:
    """Brokers seek to an entry, and the client acknowledges the messages before the place. A crash
    may forget that acknowledgement like any other.
    """
    return behind is not None and read.message_id[:2] == behind[:2] and read.message_id <= behind


def _wrongly_left(epoch: Epoch, log: Log, left: list[Read], times: Times) -> Iterator[str]:
    committed: dict[Read, None] = {}
    perhaps = dict(epoch.acknowledged)
    for held in epoch.txns:
        if held.txn.committed:
            committed.update((r, None) for r in held.reads if not _was_spared(r, held, epoch))
        if not held.txn.surely_aborted:
            perhaps.update(dict.fromkeys(held.reads))
    for read in left:
        if read in epoch.surely or (read in committed and not epoch.loose):
            yield f"ACKNOWLEDGEMENT LOST: {read} is delivered again"
    if epoch.loose:
        return
    handed = dict.fromkeys(left)
    for read in log[max(_starts(epoch, log, times)) :]:
        if read not in perhaps and read not in handed:
            yield f"CURSOR AHEAD: {read} was acknowledged by nobody and is not delivered"


def _was_spared(read: Read, by: Held, epoch: Epoch) -> bool:
    """Perhaps: a cumulative acknowledgement spares what another transaction holds at that time.

    It also spares a message that the other's abort gave back, if the message came after the
    acknowledged one.
    """
    if by.singly:
        return False
    holders = [held for held in epoch.txns if held.singly and read in held.reads]
    if not all(_had_aborted(held.txn, by.txn) for held in holders):
        return True
    return bool(holders) and not _came_again_before(read, max(by.reads, key=_place), epoch)


def _came_again_before(read: Read, last: Read, epoch: Epoch) -> bool:
    times = [index for index, each in enumerate(epoch.reads) if each == read]
    return len(times) > 1 and times[-1] < epoch.reads.index(last)


def _place(read: Read) -> tuple[int, int, int]:
    return read.message_id


def _had_aborted(txn: Txn, when_began: Txn) -> bool:
    heard, began = txn.abort_heard, when_began.began
    return heard is not None and began is not None and heard < began
