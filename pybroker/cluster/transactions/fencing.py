"""Fences older sessions of a transactional id on all brokers of the cluster.

The epochs are in the metadata, which ZooKeeper keeps: a newer session has begun once its epoch is
there (t). Then this broker asks every broker that is alive after t. Each catches up with the
metadata, closes the producers of older sessions, ends their transactions in its coordinators, and
says which coordinators these are. The session is granted when all have answered, and every
coordinator that has a log was among them.

    a broker that is not asked     was not alive after t, or came later. Before it serves a topic or
                                   a coordinator it catches up: it knows the newer epoch
    a coordinator that moves       is asked about again, until its broker has answered. What its
                                   former broker decides is in its log, or fails
    a broker that is cut off       is waited for until it answers, or its session is over. Before
                                   that, it gives up its sessions itself (`is_certain`)
    a broker that stops            lets its sessions go before it leaves the live ones
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from pybroker.base.errors import NotAllowed, PulsarError, ServiceNotReady
from pybroker.broker.ownership import BrokerAddress, Ownership
from pybroker.cluster.transactions.groups import assign_partition
from pybroker.cluster.transactions.peers import Peers
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.transactional_ids import SessionRef
from pybroker.wire import pulsar_api_pb2 as pb

_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 1.0
_WRITTEN_WITHIN_S: Final = 30.0  # when this broker stops

Here = Callable[[SessionRef], Awaitable[tuple[int, set[int]]]]

log = logging.getLogger(__name__)


class Neighbours(Protocol):
    @property
    def is_certain(self) -> bool:
        """Whether this broker is one of the live ones, beyond doubt. Cheap."""
        ...

    async def others(self) -> list[BrokerAddress]:
        """The other brokers that are alive at a time after the call. Raises ServiceNotReady."""
        ...

    def on_suspended(self, suspended: Callable[[], None]) -> None:
        """Called when this broker may no longer be counted among the live ones."""
        ...


class SharedFencing:
    """Implements transaction.coordinator.fencing_elsewhere.FencingElsewhere."""

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
        neighbours.on_suspended(self._let_go)

    @property
    def is_certain(self) -> bool:
        return not self._is_leaving and self._neighbours.is_certain

    def _let_go(self) -> None:
        if self._coordinators.letting is not None:
            self._coordinators.letting.let_go()

    async def leave(self) -> None:
        """Before this broker is no longer counted among the live ones. Idempotent."""
        self._is_leaving = True
        self._let_go()
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
        """What has not been fenced yet, after everybody was asked who has not answered before.
        Raises NotAllowed.
        """
        try:
            others = await self._neighbours.others()
            to_ask = [each for each in others if each not in asked.brokers]
            asking = [self._ask(each, newest, asked) for each in to_ask]
            answers = await asyncio.gather(*asking, return_exceptions=True)
            for error in answers:
                if error is not None:
                    raise error
            await self._ownership.refreshed()  # logs that existed when they answered
            aborted, clean = await here(newest)
            asked.aborted += aborted
            unserved = set(self._coordinators.begun_ids()) - asked.clean - clean
            if not unserved:
                return None
            asked.brokers.clear()
            for each in sorted(unserved):  # this broker takes it if no other has it
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
        self.brokers: set[BrokerAddress] = set()  # that have answered
        self.clean: set[int] = set()  # coordinators without transactions of older sessions
        self.aborted = 0
