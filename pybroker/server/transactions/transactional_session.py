"""A client's session of a transactional id, as its producers and transactions see it."""

import asyncio
from collections import Counter

from pybroker.base.errors import PulsarError, ServiceNotReady
from pybroker.transaction.coordinator.sessions.transactional_ids import (
    SessionRef,
    TransactionalId,
    producer_fenced,
)


class TransactionalSession:
    __slots__ = ("id", "is_fenced", "is_released", "name", "ref")

    def __init__(self, transactional_id: TransactionalId, name: str) -> None:
        self.id = transactional_id
        self.name = name  # a digest of the name that its client gave; empty if none
        self.ref: SessionRef | None = None  # once it is durable
        self.is_fenced = False
        self.is_released = False  # this broker could not know whether it was fenced

    @property
    def is_over(self) -> bool:
        """Whether its producers on this broker may no longer publish."""
        return self.is_fenced or self.is_released

    def is_older_than(self, newest: SessionRef) -> bool:
        """`newest` is a session of the same id."""
        return self.ref is not None and self.ref.epoch < newest.epoch

    def require_current(self) -> None:
        """Raises ProducerFenced if a newer session has begun, ServiceNotReady (its client may
        reconnect) while that is not known.
        """
        if self.is_fenced:
            raise self.fenced()
        if self.is_released:
            raise not_certain(self.id.name)

    def fenced(self) -> PulsarError:
        return producer_fenced(self.id.name)


def not_certain(name: str) -> ServiceNotReady:
    return ServiceNotReady(
        f"Transactional id {name!r}: this broker is stopping, or has no connection to ZooKeeper, "
        "and cannot know whether a newer session has begun; try again"
    )


class Writing:
    """Counts the runs that sessions have published and that are not durable yet."""

    def __init__(self) -> None:
        self._runs: Counter[TransactionalSession] = Counter()
        self._ended: asyncio.Future[None] | None = None  # when any has ended, if a request waits

    def begun(self, session: TransactionalSession) -> None:
        self._runs[session] += 1

    def ended(self, session: TransactionalSession) -> None:
        self._runs[session] -= 1
        if not self._runs[session]:
            del self._runs[session]
            if self._ended is not None:
                self._ended.set_result(None)
                self._ended = None

    async def nothing_before(self, newest: SessionRef) -> None:
        """Returns when no run of an older session of the id is in flight."""
        while any(each.id == newest.id and each.is_older_than(newest) for each in self._runs):
            await self._any_ended()

    async def nothing(self) -> None:
        while self._runs:
            await self._any_ended()

    async def _any_ended(self) -> None:
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._ended])
