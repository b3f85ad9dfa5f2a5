"""Fences sessions on all brokers that share transactional ids.

The metadata says which session of an id is the newest, but the brokers learn of it a little later.
So a newer session is granted only when every broker has confirmed that it knows the session, that
producers of older sessions no longer publish there, and that its coordinators have no transactions
of older sessions.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef


class Letting(Protocol):
    """Gives up the sessions of this broker when it cannot know whether they are fenced."""

    def release_all(self) -> None:
        """Forget the sessions and close their producers; the clients reconnect."""
        ...

    async def nothing_is_written(self) -> None:
        """Returns when no message published by a session is still being written."""
        ...


class RemoteFencing(Protocol):
    @property
    def is_certain(self) -> bool:
        """Whether a newer session cannot have been granted without this broker, because the others
        still count this broker among the live ones. Cheap: it is asked for each run of SENDs.
        """
        ...

    async def caught_up(self) -> None:
        """Returns when this broker knows all sessions that were recorded before the call. Raises
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
        """Returns when no broker has producers or transactions of sessions before `newest`; the
        result is the number of open transactions that were aborted.

        `here` does the same on this broker and returns that number and the ids of its coordinators.
        `waits_for` is called with a clause that says what is still missing. Raises NotAllowed like
        `all_can_fence`.
        """
        ...
