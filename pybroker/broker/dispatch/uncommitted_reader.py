"""The read position of a read_uncommitted subscription.

It goes up to the end of the log. If transactions wait in the side log, it stops before the messages
that a commit is copying at the moment: the copy may be given up and made again.

Messages may have been read before they are aborted. So aborted messages are left out again whenever
entries are about to go out, new or redelivered. Those already delivered are settled afterwards, a
few entries per turn: no acknowledgement is owed for them any more, and the mark-delete position
moves over them as if they had never existed.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from managed_ledger.cursor import ManagedCursor
from managed_ledger.position import Position
from pybroker.broker.dispatch.delivery import Delivery
from pybroker.broker.dispatch.entry_fetcher import OnDamage
from pybroker.broker.dispatch.entry_reader import EntryReader, ReadableTopic, between

SETTLED_A_TURN: Final = 1000  # entries

# Called with delivered entries for which no acknowledgement is owed any more.
OnSettled = Callable[[Sequence[tuple[int, int]]], None]


class UncommittedReader(EntryReader):
    __slots__ = ("_behind", "_on_settled")

    def __init__(
        self,
        topic: ReadableTopic,
        cursor: ManagedCursor,
        resume: Callable[[], None],
        on_damage: OnDamage,
        on_settled: OnSettled,
    ) -> None:
        super().__init__(topic, cursor, resume, on_damage)
        self._behind: Position | None = None  # from here to `position`, entries are to be settled
        self._on_settled: OnSettled | None = on_settled

    @property
    def limit(self) -> Position:
        return self._topic.max_uncommitted_position

    def break_cycles(self) -> None:
        super().break_cycles()
        self._behind = self._on_settled = None

    # -- what may be delivered

    def reread(self, ledger_id: int, first: int, last: int, max_bytes: int) -> Delivery | None:
        self._settle_hidden(ledger_id, first, last)
        return super().reread(ledger_id, first, last, max_bytes)

    def wants(self, position: Position) -> bool:
        ledger_id, entry_id = position
        hidden = self._topic.hidden.ranges_within(ledger_id, entry_id, entry_id)
        return not hidden and super().wants(position)

    def _settle_hidden(self, ledger_id: int, first: int, last: int) -> None:
        """Evaluated each time: entries that were visible a moment ago may be hidden now."""
        cursor = self._cursor
        for start, stop in self._topic.hidden.ranges_within(ledger_id, first, last):
            for left in between(start, stop, cursor.deleted_within(ledger_id, start, stop)):
                cursor.delete_range(ledger_id, *left)

    # -- what was aborted after it was read

    def aborted(self, first: Position) -> None:
        """Called when entries from `first` on have just been hidden."""
        if first < self.position and self._on_settled is not None:
            self._settle_from(first)

    def _settle_from(self, first: Position) -> None:
        if self._behind is None:
            asyncio.get_running_loop().call_soon(self._settle_some)
        self._behind = first if self._behind is None else min(first, self._behind)

    def _settle_some(self) -> None:
        behind, self._behind = self._behind, None
        if behind is None:
            return  # the subscription has ended
        at, end = self._ledger.next_position(behind.before), self.position
        if at >= end:
            return  # all of these entries are read again
        ledger_id, first = at
        last = first + SETTLED_A_TURN - 1
        if ledger_id == end.ledger_id:
            last = min(last, end.entry_id - 1)
        self._settle_hidden(ledger_id, first, last)
        hidden = self._topic.hidden.ranges_within(ledger_id, first, last)
        after = Position(ledger_id, last + 1)
        if after < end:
            self._settle_from(after)
        assert self._on_settled is not None
        self._on_settled(
            [(ledger_id, entry_id) for start, stop in hidden for entry_id in range(start, stop + 1)]
        )
