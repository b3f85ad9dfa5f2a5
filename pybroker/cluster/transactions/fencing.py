"""Fences older sessions of a transactional id on all brokers of the cluster.

The epochs are in the metadata, which ZooKeeper keeps: a newer session has begun once its epoch is
there (time t). Then this broker asks every broker that is alive after t. Each one catches up with
the metadata, closes the producers of older sessions, ends their transactions in its coordinators,
and names these coordinators. The session is granted when all brokers have answered and every
coordinator that has a log was named.

    a broker that is not asked     was not alive after t, or joined later. Before it serves a topic
                                   or a coordinator it catches up, so it knows the newer epoch
    a coordinator that moves       is asked about again until its broker has answered. The decisions
                                   of its former broker are in its log, or fail
    a broker that is cut off       is waited for until it answers or its session has ended. Before
                                   that, it gives up its sessions itself (`is_certain`)
    a broker that stops            gives up its sessions before it leaves the live brokers
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from pybroker.base.errors import NotAllowed, PulsarError, ServiceNotReady
from pybroker.broker.brokers.ownership import BrokerAddress, Ownership
from pybroker.cluster.transactions.groups import assign_partition
from pybroker.cluster.transactions.peers import Peers
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef
from pybroker.wire import pulsar_api_pb2 as pb

_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 1.0
_WRITTEN_WITHIN_S: Final = 30.0  # when this broker stops

Here = Callable[[SessionRef], Awaitable[tuple[int, set[int]]]]

log = logging.getLogger(__name__)


class Neighbours(Protocol):
    @property
    def is_certain(self) -> bool:
        """Whether this broker is certainly one of the live brokers. Cheap."""
        ...

    async def others(self) -> list[BrokerAddress]:
        """All other brokers that are alive at a time after the call. Raises ServiceNotReady."""
        ...

    def on_suspended(self, suspended: Callable[[], None]) -> None:
        """`suspended` is called when this broker may no longer count as one of the live brokers."""
        ...


class SharedFencing:
    """Implements transaction.coordinator.sessions.remote_fencing.RemoteFencing."""

    def __init__(
        self,
        neighbours: Neighbours,
        coordinators: Coordinators,
        ownership: Ownership,
        peers: Peers,
    ) -> None:
        self._neighbours = neighbours
        self._coordinators = coordinators
        self._ownership = ownership
        self._peers = peers
        self._is_leaving = False
        neighbours.on_suspended(self._release_all)

    @property
    def is_certain(self) -> bool:
        return not self._is_leaving and self._neighbours.is_certain

    def _release_all(self) -> None:
        if self._coordinators.letting is not None:
            self._coordinators.letting.release_all()

    async def leave(self) -> None:
        """Give up the sessions before this broker leaves the live brokers. Idempotent."""
        self._is_leaving = True
        self._release_all()
        if self._coordinators.letting is None:
            return
        try:
            async with asyncio.timeout(_WRITTEN_WITHIN_S):
                await self._coordinators.letting.nothing_is_written()
        except TimeoutError:
            log.warning("messages of transactional ids are still being written")

    async def caught_up(self) -> None:
        await self._ownership.refreshed()

    async def all_can_fence(self) -> None:
        others = await self._neighbours.others()
        await asyncio.gather(*map(self._require_fencing, others))

    async def _require_fencing(self, broker: BrokerAddress) -> None:
        url = broker.broker_url or broker.broker_url_tls
        try:
            fences = await self._peers.fences_sessions(broker)
        except ServiceNotReady as error:
            raise ServiceNotReady(
                f"{url} must fence older sessions, too, and cannot be reached ({error}); try again"
            ) from error
        if not fences:
            raise NotAllowed(
                f"{url} is in the cluster and does not "
                "fence sessions: transactional ids need pybroker brokers of this version or later "
                "throughout the cluster"
            )

    # -- fencing

    async def fence(self, newest: SessionRef, here: Here, waits_for: Callable[[str], None]) -> int:
        asked, pause_s = _Asked(), _FIRST_PAUSE_S
        while (missing := await self._missing(newest, here, asked)) is not None:
            waits_for(missing)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
        return asked.aborted

    async def _missing(self, newest: SessionRef, here: Here, asked: "_Asked") -> str | None:
        """Ask the brokers that have not answered yet. Returns a clause that says what is not fenced
        yet; None if nothing is missing. Raises NotAllowed.
        """
        try:
            others = await self._neighbours.others()
            to_ask = [each for each in others if each not in asked.brokers]
            asking = [self._ask(each, newest, asked) for each in to_ask]
            answers = await asyncio.gather(*asking, return_exceptions=True)
            for error in answers:
                if error is not None:
                    raise error
            await self._ownership.refreshed()  # `begun_ids` must include all logs of that time
            aborted, clean = await here(newest)
            asked.aborted += aborted
            unserved = set(self._coordinators.begun_ids()) - asked.clean - clean
            if not unserved:
                return None
            asked.brokers.clear()
            for each in sorted(unserved):  # this broker takes it if no broker has it
                await self._ownership.owner_of(assign_partition(each))
        except NotAllowed:
            raise
        except PulsarError as error:
            return str(error)
        return f"transaction coordinator {min(unserved)} is not open on any broker"

    async def _ask(self, broker: BrokerAddress, newest: SessionRef, asked: "_Asked") -> None:
        await self._require_fencing(broker)
        command = pb.CommandFenceSessions(
            transactional_id=newest.id.name, owner=newest.id.owner, epoch=newest.epoch
        )
        answer = await self._peers.request(broker, command)
        asked.brokers.add(broker)
        asked.clean.update(answer.coordinator)
        asked.aborted += answer.aborted


class _Asked:
    def __init__(self) -> None:
        self.brokers: set[BrokerAddress] = set()  # brokers that have answered
        self.clean: set[int] = set()  # coordinators without transactions of older sessions
        self.aborted = 0
