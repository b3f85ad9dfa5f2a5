"""Redelivery, alone: the queue, entries that are not due yet, and redelivery counts."""

from typing import Any

import pytest

from managed_ledger.position import Position
from pybroker.broker.dispatch import redelivery
from pybroker.broker.dispatch.delivery import Delivery
from pybroker.broker.dispatch.redelivery import RedeliveryCounts, RedeliveryQueue
from pybroker.broker.dispatch.returned import ReturnedEntries

PLENTY = 10**6


class Reader:
    """Finds all requested entries, except for those in `gone`, which no consumer wants any more."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.gone: set[Position] = set()
        self.asked: list[tuple[int, int]] = []

    def wants(self, position: Position) -> bool:
        return position not in self.gone

    def reread(self, ledger_id: int, first: int, last: int, max_bytes: int) -> Delivery:
        self.asked.append((first, last))
        ids = [i for i in range(first, last + 1) if self.wants(Position(ledger_id, i))]
        return Delivery(ledger_id, ids, [b"x"] * len(ids), [1] * len(ids))


class Unread:
    """Entries of `early` are not due yet."""

    def __init__(self, *early: int) -> None:
        self.early = early
        self.asked = 0

    def wait_again(self, delivery: Delivery) -> list[int]:
        self.asked += 1
        return [at for at, entry_id in enumerate(delivery.entry_ids) if entry_id in self.early]


def queue_at(entry_id: int) -> tuple[RedeliveryQueue, Reader]:
    reader: Any = Reader(Position(2, entry_id))
    return RedeliveryQueue(reader), reader


def test_what_was_not_read_yet_needs_no_queue() -> None:
    queue, _ = queue_at(5)
    assert queue.add({1: [8], 2: [4, 5, 6], 3: [0]}) == {1: [8], 2: [4]}
    assert len(queue) == 2
    other, _ = queue_at(5)
    assert other.add({2: [5, 7]}) == {}
    assert not other


def test_neighbours_are_read_together() -> None:
    queue, reader = queue_at(100)
    queue.add({2: [1, 2, 3, 7, 8]})
    for expected in ([1, 2, 3], [7, 8]):
        found = queue.peek(10, PLENTY)
        assert found is not None
        assert list(found.entry_ids) == expected
        queue.advance(found)
    assert reader.asked == [(1, 3), (7, 8)]
    assert not queue


@pytest.mark.parametrize(("early", "now"), [((), [1, 2, 3]), ((2,), [1, 3]), ((1, 2, 3), [])])
def test_what_is_not_due_leaves_the_queue_and_the_rest_goes_out(
    early: tuple[int, ...], now: list[int]
) -> None:
    reader: Any = Reader(Position(2, 100))
    unread: Any = Unread(*early)
    queue = ReturnedEntries(reader, unread)
    queue.add({2: [1, 2, 3]})
    queue.may_be_early = True
    found = queue.peek(10, PLENTY)
    assert found is not None
    assert list(found.entry_ids) == now
    assert len(queue) == len(now)


def test_only_what_an_abort_gave_back_may_be_early_until_all_of_it_is_out() -> None:
    reader: Any = Reader(Position(2, 100))
    unread: Any = Unread()
    queue = ReturnedEntries(reader, unread)
    queue.add({2: [1, 2]})
    assert queue.peek(1, PLENTY)
    assert unread.asked == 0
    queue.may_be_early = True
    while (found := queue.peek(1, PLENTY)) is not None:
        queue.advance(found)
    assert (unread.asked, queue.may_be_early) == (2, False)
    queue.add({2: [1]})
    assert queue.peek(1, PLENTY)
    assert unread.asked == 2


def counted(counts: RedeliveryCounts, *entry_ids: int) -> list[int] | None:
    found = counts.of(Delivery(1, entry_ids, [b""] * len(entry_ids), [1] * len(entry_ids)))
    return None if found is None else list(found)


def test_counts_of_what_is_acknowledged_go_once_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redelivery, "_PRUNE_FROM", 4)
    gone, asked = {(1, 0), (1, 1), (2, 0)}, list[tuple[int, int]]()

    def is_deleted(position: tuple[int, int]) -> bool:
        asked.append(position)
        return position in gone

    counts = RedeliveryCounts(is_deleted)
    counts.increment({1: [0, 1, 2]})
    assert (asked, counted(counts, 0, 1, 2)) == ([], [1, 1, 1])
    counts.increment({1: [2, 3], 2: [0]})
    assert sorted(asked) == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]
    assert (counted(counts, 0, 1, 2, 3), len(counts._ledgers)) == ([0, 0, 2, 1], 1)


def test_they_are_looked_through_again_once_there_are_twice_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redelivery, "_PRUNE_FROM", 4)
    asked = list[tuple[int, int]]()
    counts = RedeliveryCounts(lambda position: bool(asked.append(position)))
    for entry_id in range(11):
        counts.increment({1: [entry_id]})
        assert len(asked) == (0 if entry_id < 4 else 5 if entry_id < 10 else 5 + 11)


def test_after_clearing_all_goes_out_as_for_the_first_time() -> None:
    counts = RedeliveryCounts(lambda position: False)
    counts.increment({1: [0]})
    counts.clear()
    assert (counted(counts, 0), bool(counts)) == (None, False)
