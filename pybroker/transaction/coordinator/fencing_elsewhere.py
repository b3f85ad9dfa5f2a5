"""What a broker that shares transactional ids with others needs of them.

The metadata says which session of an id is the newest, and all brokers know it a little later. So a
newer session is granted only when each of them has said that it knows, that producers of older
sessions publish nothing there, and that its coordinators have no transaction of theirs.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from pybroker.transaction.coordinator.transactional_ids import SessionRef


class Letting(Protocol):
    """The sessions of this broker, while it cannot know whether they are fenced."""

    def let_go(self) -> None:
        """Forget them, and close their producers, whose clients come back."""
        ...

    async def nothing_is_written(self) -> None:
        """Returns when nothing is under way that sessions have published."""
        ...


class FencingElsewhere(Protocol):
    @property
    def is_certain(self) -> bool:
        """Whether a newer session could not have been granted without this broker: others still
        count it among the live ones. Cheap; asked for each run of SENDs.
        """
        ...

    async def caught_up(self) -> None:
        """Return when this broker knows all sessions that were recorded before the call. Raises
        ServiceNotReady.
        """
        ...

    async def all_can_fence(self) -> None:
        """Raises NotAllowed if a live broker cannot fence sessions, ServiceNotReady if it cannot be
        asked.
        """
        ...

    async def fence(
        self,
        newest: SessionRef,
        here: Callable[[SessionRef], Awaitable[tuple[int, set[int]]]],
        waits_for: Callable[[str], None],
    ) -> int:
        """Returns when no broker has anything of the sessions before `newest`, with the number of
        open transactions that were aborted.

        `here` does it on this broker, and returns that number, and its coordinators. `waits_for` is
        told what is still missing, as a clause. Raises NotAllowed as `all_can_fence`.
        """
        ...
