"""Keeps a producer or a consumer registered at its topic's broker.

`open` looks up the broker and registers the member. If the registration is lost (the connection
broke, or the broker closed it to move the topic), the member is told and registered again, with
bounded backoff, until that succeeds or fails permanently.
"""

import asyncio
from typing import Final, Protocol

from pybroker.client.connection.cluster import Cluster
from pybroker.client.connection.connection import Connection
from pybroker.client.connection.retry import FIRST_DELAY_S, not_final, retrying
from pybroker.client.errors import AlreadyClosed, ConnectError

BRIEF_S: Final = 1.0


class Member(Protocol):
    async def register(self, connection: Connection) -> None:
        """Registers with the broker; must not await after the broker's answer."""
        ...

    def leave(self, connection: Connection) -> None:
        """Cancels a registration without waiting for the broker's answer."""
        ...

    def interrupted(self) -> None:
        """The registration was lost; another follows."""
        ...

    def failed(self, error: Exception) -> None:
        """The registration was lost for good."""
        ...


class Attachment:
    def __init__(self, cluster: Cluster, topic: str, member: Member) -> None:
        self.connection: Connection | None = None
        self._cluster = cluster
        self._topic = topic
        self._member = member
        self._lost = False
        self._closed = False
        self._attached_at_s = 0.0

    async def open(self, timeout_s: float | None) -> None:
        """Retries on transient errors until the deadline; None: without limit."""
        await retrying(
            self._attach,
            self._cluster.rng,
            passes=self._cluster.passes,
            timeout_s=timeout_s,
            what=f"Opening {self._topic}",
        )

    async def _attach(self) -> None:
        connection = await self._cluster.connection_for(self._topic)
        self._refuse_if_closed()
        self._lost = False
        await self._member.register(connection)
        if self._lost or connection.closed:
            raise ConnectError(f"{self._topic} was closed by its broker while being opened")
        if self._closed:
            self._member.leave(connection)
        self._refuse_if_closed()
        self.connection = connection
        self._attached_at_s = asyncio.get_running_loop().time()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise AlreadyClosed(f"{self._topic} was closed while being opened")

    def lost(self, pause: bool = False) -> None:
        """Registers again: at once, or after a `pause` if the broker asked for one.

        Does nothing while `open` is still running, which checks for this when it is done.
        """
        self._lost = True
        if self.connection is None or self._closed:
            return
        self.connection = None
        self._member.interrupted()
        # Do not hammer a broker that drops every new registration.
        pause = pause or asyncio.get_running_loop().time() - self._attached_at_s < BRIEF_S
        self._cluster.tasks.start(self._reattach(pause), f"reopen {self._topic}")

    async def _reattach(self, pause: bool) -> None:
        if pause:
            await asyncio.sleep(FIRST_DELAY_S)
        try:
            await retrying(
                self._attach,
                self._cluster.rng,
                passes=lambda error: not_final(error) and not self._closed,
                timeout_s=None,
                what=f"Reopening {self._topic}",
            )
        except Exception as error:
            if not self._closed:
                self._member.failed(error)

    def close(self) -> Connection | None:
        """Returns the connection on which to send the close command, if there is one."""
        self._closed = True
        connection, self.connection = self.connection, None
        return connection
