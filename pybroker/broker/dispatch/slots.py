"""Key_Shared's state by hash slot: entries in flight by holder, waiting entries by consumer."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile

from sortedcontainers import SortedDict

from managed_ledger.position import Position
from pybroker.broker.subscriptions.consumer import Consumer


class SlotsInFlight:
    """Entries that a consumer holds unacknowledged, by slot. A slot belongs to one consumer at a
    time, unless out-of-order delivery is allowed; then the latest consumer counts.
    """

    def __init__(self) -> None:
        self._slots: dict[tuple[int, int], int] = {}
        self._holders: dict[int, Consumer] = {}
        self._counts: dict[int, int] = {}

    def add(self, position: tuple[int, int], slot: int, consumer: Consumer) -> None:
        self._slots[position] = slot
        self._holders[slot] = consumer
        self._counts[slot] = self._counts.get(slot, 0) + 1

    def remove(self, positions: Iterable[tuple[int, int]]) -> list[int]:
        """Returns the slots that no consumer holds any more."""
        drained: list[int] = []
        for position in positions:
            slot = self._slots.pop(position, None)
            if slot is None:
                continue
            self._counts[slot] -= 1
            if not self._counts[slot]:
                del self._counts[slot], self._holders[slot]
                drained.append(slot)
        return drained

    def remove_up_to(self, mark: tuple[int, int]) -> list[int]:
        """Like `remove`, for all entries at or before `mark`."""
        before = self._counts
        self._slots = {at: slot for at, slot in self._slots.items() if at > mark}
        self._counts = dict(Counter(self._slots.values()))
        drained = [slot for slot in before if slot not in self._counts]
        for slot in drained:
            del self._holders[slot]
        return drained

    def holder(self, slot: int) -> Consumer | None:
        return self._holders.get(slot)

    def held(self) -> Iterator[tuple[int, Consumer, int]]:
        """Slots, their holders, and the number of entries held."""
        return ((slot, holder, self._counts[slot]) for slot, holder in self._holders.items())

    def clear(self) -> None:
        self._slots.clear()
        self._holders.clear()
        self._counts.clear()


class WaitingEntries:
    """Positions that wait for one consumer, in log order, each with its slot."""

    def __init__(self) -> None:
        self._slots = SortedDict()

    def __len__(self) -> int:
        return len(self._slots)

    def items(self) -> Iterator[tuple[Position, int]]:
        return iter(self._slots.items())

    def add(self, position: Position, slot: int) -> bool:
        """False if the position was already waiting."""
        before = len(self._slots)
        self._slots[position] = slot
        return len(self._slots) > before

    def remove(self, positions: Iterable[tuple[int, int]]) -> list[int]:
        """Returns the slots of the positions."""
        return [self._slots.pop(position) for position in positions]

    def first(self, limit: int, span: int) -> list[Position]:
        """Up to `limit` positions, all in one ledger and within `span` entries of the first."""
        ledger_id, first = self._slots.peekitem(0)[0]
        near = takewhile(lambda at: at < (ledger_id, first + span), self._slots)
        return list(islice(near, limit))
