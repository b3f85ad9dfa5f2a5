"""The position from which a topic's log must keep records of ends, because the deletion in the side
log may not be durable yet.

Without its marker, a transaction that reappears in the side log after a crash would be copied
again.
"""

from collections.abc import Awaitable, Callable

from managed_ledger.position import EARLIEST, LATEST, Position


class ToldEnds:
    __slots__ = ("_being_forgotten", "_from")

    def __init__(self) -> None:
        self._from, self._being_forgotten = LATEST, list[Position]()

    def found(self) -> None:
        """Recovery found such ends; the position is not known."""
        self._from = EARLIEST.after

    def add(self, first: Position | None) -> None:
        """A copy that begins there."""
        self._from = min(self._from, first or self._from)

    @property
    def first(self) -> Position:
        """LATEST if there are none."""
        return min(self._from, *self._being_forgotten, LATEST)

    @property
    def are_being_forgotten(self) -> bool:
        return bool(self._being_forgotten)

    async def forget(self, flush: Callable[[], Awaitable[None]]) -> None:
        """`flush` makes the deletions durable. Raises its errors."""
        told_from, self._from = self._from, LATEST
        self._being_forgotten.append(told_from)
        try:
            await flush()
        except BaseException:
            self._from = min(self._from, told_from)
            raise
        finally:
            self._being_forgotten.remove(told_from)
