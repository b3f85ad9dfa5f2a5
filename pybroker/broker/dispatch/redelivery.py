"""Entries to be delivered again, and how many times each was redelivered.

An entry enters the queue when its consumer gives it back (negative acknowledgement, disconnect) or
when the transaction that acknowledged it aborts. The queue is not searched for acknowledged
entries: they are left out when the entries are read again.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from sortedcontainers import SortedDict, SortedSet

from managed_ledger.position import Position
from pybroker.broker.dispatch.delivery import MAX_RUN_ENTRIES, Delivery, EntryIds
from pybroker.broker.dispatch.entry_reader import EntryReader

_PRUNE_FROM: Final = 1000  # counts; individual acknowledgements keep their number below this


class RedeliveryQueue:
    """Entries before the reader's position, delivered again in log order. Used like an EntryReader.

    It stores entry numbers by ledger, not positions: tens of thousands may come back at once.
    """

    def __init__(self, reader: EntryReader) -> None:
        self._reader = reader
        self._ledgers = SortedDict()  # values are SortedSets, never empty

    def __len__(self) -> int:
        return sum(map(len, self._ledgers.values()))

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def add(self, entries: EntryIds) -> EntryIds:
        """Returns the entries that were added: an entry that the reader has not reached needs no
        queue.
        """
        reached, added = self._reader.position, EntryIds()
        for ledger_id, entry_ids in entries.items():
            if ledger_id == reached.ledger_id:
                entry_ids = [entry_id for entry_id in entry_ids if entry_id < reached.entry_id]
            if entry_ids and ledger_id <= reached.ledger_id:
                self._ledgers.setdefault(ledger_id, SortedSet()).update(entry_ids)
                added[ledger_id] = entry_ids
        return added

    def forget_up_to(self, mark: Position) -> None:
        """Forget entries up to this position, which are no longer wanted."""
        while self._ledgers and self._ledgers.keys()[0] < mark.ledger_id:
            self._ledgers.popitem(0)
        if (entry_ids := self._ledgers.get(mark.ledger_id)) is not None:
            self._remove(mark.ledger_id, list(entry_ids.irange(maximum=mark.entry_id)))

    def clear(self) -> None:
        self._ledgers.clear()

    def peek(self, max_messages: int, max_bytes: int) -> Delivery | None:
        """Like EntryReader.peek. Entries that are no longer wanted leave the queue; an empty
        delivery also means that the entries after them should be tried.
        """
        left = 0
        while self._ledgers:
            ledger_id, entry_ids = self._ledgers.peekitem(0)
            run = _first_run(entry_ids, min(max_messages, MAX_RUN_ENTRIES))
            delivery = self._reader.reread(ledger_id, run[0], run[-1], max_bytes)
            if delivery is None:
                return None
            if delivery.entries:
                return delivery.part(0, delivery.affordable(max_messages))
            left += self._remove_unwanted(ledger_id, run)
            if left >= MAX_RUN_ENTRIES or not self._ledgers:
                return delivery
        return None

    def _remove_unwanted(self, ledger_id: int, run: Sequence[int]) -> int:
        """Call when no entry that was read of the run is wanted; perhaps only its beginning was
        read. If all its entries are wanted and none was read, they have been trimmed. Returns the
        number of removed entries.
        """
        wants = self._reader.wants
        unwanted = [each for each in run if not wants(Position(ledger_id, each))] or run
        self._remove(ledger_id, unwanted)
        return len(unwanted)

    def advance(self, delivery: Delivery) -> None:
        self._remove(delivery.ledger_id, delivery.entry_ids)

    pass_over = advance  # a dispatch rate does not hold back redeliveries

    def _remove(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        left = self._ledgers.get(ledger_id)
        if left is not None:
            left.difference_update(entry_ids)
            if not left:
                del self._ledgers[ledger_id]


def _first_run(entry_ids: Iterable[int], limit: int) -> list[int]:
    """The first consecutive entries."""
    run: list[int] = []
    for entry_id in islice(entry_ids, limit):
        if run and entry_id != run[-1] + 1:
            break
        run.append(entry_id)
    return run


class RedeliveryCounts:
    """How many times each entry was redelivered; acknowledged entries are forgotten in time."""

    __slots__ = (
        "_is_deleted",
        "_ledgers",
        "_prune_at",
    )

    def __init__(self, is_deleted: Callable[[tuple[int, int]], bool]) -> None:
        self._ledgers: dict[int, dict[int, int]] = {}
        self._is_deleted = is_deleted
        self._prune_at = _PRUNE_FROM

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def increment(self, entries: EntryIds) -> None:
        for ledger_id, entry_ids in entries.items():
            counts = self._ledgers.setdefault(ledger_id, {})
            for entry_id in entry_ids:
                counts[entry_id] = counts.get(entry_id, 0) + 1
        if sum(map(len, self._ledgers.values())) > self._prune_at:
            self._prune()

    def _prune(self) -> None:
        """Forget entries that transactions and cumulative acknowledgements have settled."""
        self._ledgers = {
            ledger_id: kept
            for ledger_id, counts in self._ledgers.items()
            if (kept := self._unacked(ledger_id, counts))
        }
        self._prune_at = max(_PRUNE_FROM, 2 * sum(map(len, self._ledgers.values())))

    def _unacked(self, ledger_id: int, counts: dict[int, int]) -> dict[int, int]:
        return {
            entry_id: count
            for entry_id, count in counts.items()
            if not self._is_deleted((ledger_id, entry_id))
        }

    def forget(self, positions: Iterable[tuple[int, int]]) -> None:
        for ledger_id, entry_id in positions:
            counts = self._ledgers.get(ledger_id)
            if counts is not None and counts.pop(entry_id, None) is not None and not counts:
                del self._ledgers[ledger_id]

    def of(self, delivery: Delivery) -> Sequence[int] | None:
        """The count of each entry; None if all of them are delivered for the first time."""
        counts = self._ledgers.get(delivery.ledger_id)
        if counts is None or counts.keys().isdisjoint(delivery.entry_ids):
            return None
        return [counts.get(entry_id, 0) for entry_id in delivery.entry_ids]

    def clear(self) -> None:
        self._ledgers.clear()


# For subscriptions without counts, shared by all of them; nothing is ever added.
NO_REDELIVERIES: Final = RedeliveryCounts(lambda position: False)
