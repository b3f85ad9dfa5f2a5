"""Entries that are to be delivered once more, and how often each was.

A position enters the queue when its consumer gives it back (negative acknowledgement, disconnect)
or when the transaction that acknowledged it aborts. Acknowledged entries are not looked for in the
queue: reading again leaves them out.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from sortedcontainers import SortedSet

from managed_ledger.position import Position
from pybroker.broker.delivery import MAX_RUN_ENTRIES, Delivery
from pybroker.broker.entry_reader import EntryReader

_PRUNE_FROM: Final = 1000  # counts; what is acknowledged one by one never gets there


class RedeliveryQueue:
    """Positions behind the reader's, delivered again in log order. Read like an EntryReader."""

    def __init__(self, reader: EntryReader) -> None:
        self._reader = reader
        self._positions = SortedSet()

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, position: object) -> bool:
        return position in self._positions

    def add(self, positions: Iterable[Position]) -> list[Position]:
        """Returns those that were added: what the reader has not reached yet needs no queue."""
        reached = self._reader.position
        added = [position for position in positions if position < reached]
        self._positions.update(added)
        return added

    def clear(self) -> None:
        self._positions.clear()

    def peek(self, max_messages: int, max_bytes: int) -> Delivery | None:
        """As EntryReader.peek; entries that nobody wants any more leave the queue."""
        while self._positions:
            run = self._first_run(min(max_messages, MAX_RUN_ENTRIES))
            delivery = self._reader.reread(*run[0], run[-1].entry_id, max_bytes)
            if delivery is None:
                return None
            if delivery.entries:
                return delivery.part(0, delivery.affordable(max_messages))
            self._positions.difference_update(run)
        return None

    def advance(self, delivery: Delivery) -> None:
        self._positions.difference_update(
            (delivery.ledger_id, entry_id) for entry_id in delivery.entry_ids
        )

    def _first_run(self, limit: int) -> list[Position]:
        """The first positions, as far as their entries are neighbours."""
        run: list[Position] = []
        for position in self._positions:
            if run and (position != run[-1].after or len(run) == limit):
                break
            run.append(position)
        return run


class RedeliveryCounts:
    """How often each entry was delivered again; an acknowledged one is forgotten in time."""

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

    def increment(self, positions: Iterable[tuple[int, int]]) -> None:
        for ledger_id, entry_id in positions:
            counts = self._ledgers.setdefault(ledger_id, {})
            counts[entry_id] = counts.get(entry_id, 0) + 1
        if sum(map(len, self._ledgers.values())) > self._prune_at:
            self._prune()

    def _prune(self) -> None:
        """Forget what transactions and cumulative moves of the cursor acknowledged."""
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
        """By entry of the delivery; None if all of them are delivered for the first time."""
        counts = self._ledgers.get(delivery.ledger_id)
        if counts is None or counts.keys().isdisjoint(delivery.entry_ids):
            return None
        return [counts.get(entry_id, 0) for entry_id in delivery.entry_ids]

    def clear(self) -> None:
        self._ledgers.clear()


# Of subscriptions that count none, shared by all of them: nothing is put into it.
NO_REDELIVERIES: Final = RedeliveryCounts(lambda position: False)
