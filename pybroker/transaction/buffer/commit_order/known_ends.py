"""The position from which a topic's log must keep the markers of copied transactions.

The deletion of their entries from the side log may not be durable yet. If a crash undoes the
deletion and the marker is gone, the transaction would be copied again.
"""

from collections.abc import Awaitable, Callable

from managed_ledger.position import EARLIEST, LATEST, Position


class KnownEnds:
    __slots__ = ("_being_forgotten", "_from")

    def __init__(self) -> None:
        self._from, self._being_forgotten = LATEST, list[Position]()

    def found(self) -> None:
        """Recovery found such markers; their position is not known."""
        self._from = EARLIEST.after

    def add(self, first: Position | None) -> None:
        """Keep the log from `first` on, where a copy begins. None: the copy has no entries."""
        self._from = min(self._from, first or self._from)

    @property
    def first(self) -> Position:
        """The position; LATEST if nothing must be kept."""
        return min(self._from, *self._being_forgotten, LATEST)

    @property
    def are_being_forgotten(self) -> bool:
        return bool(self._being_forgotten)

    async def forget(self, flush: Callable[[], Awaitable[None]]) -> None:
        """Call `flush`, which makes the deletions durable, then keep the log no longer. Raises the
        errors of `flush`.
        """
        told_from, self._from = self._from, LATEST
        self._being_forgotten.append(told_from)
        try:
            await flush()
        except BaseException:
            self._from = min(self._from, told_from)
            raise
        finally:
            self._being_forgotten.remove(told_from)
