"""The coordinators of a cluster. A broker serves those whose partitions of the assign topic it
owns.

When a broker acquires a bundle, it opens the bundle's coordinators at once, so that decided
transactions complete even if no client connects. If no broker owns the partition of a coordinator
that has a log, its transactions would wait for the next client. So every broker regularly looks for
such partitions, and takes them.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from pybroker.base.errors import NotAllowed, PulsarError, TransactionNotFound
from pybroker.base.names import COORDINATOR_ASSIGN, TopicName
from pybroker.base.runtime import Clock, Tasks
from pybroker.broker.brokers.ownership import Bundle, Ownership
from pybroker.cluster.transactions.fencing import SharedFencing
from pybroker.cluster.transactions.groups import SharedGroups, assign_partition
from pybroker.cluster.transactions.peers import Peers
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.remote_coordinators import (
    Answer,
    Participation,
    RemoteCoordinators,
    require_begun,
)
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef, TransactionalId
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb

_LOOK_EVERY_S: Final = 2.0

log = logging.getLogger(__name__)


class SharedCoordinators:
    def __init__(
        self,
        coordinators: Coordinators,
        ownership: Ownership,
        peers: Peers,
        clock: Clock,
        count: Callable[[], int],
        fencing: SharedFencing,
        other_logs: Callable[[], Iterable[TopicName]] = tuple,
    ) -> None:
        """`count` returns the cluster's current number of coordinators, `other_logs` what else must
        never be without a broker: groups of Kafka's, whose offsets expire and may be pending.
        """
        self._coordinators = coordinators
        self._ownership = ownership
        self._peers = peers
        self._count = count
        self._other_logs = other_logs
        self._tasks = Tasks("coordinators of several brokers")
        self.remote = RemoteCoordinators(self._serves, self._ask, clock)
        groups = SharedGroups(ownership, peers, self._ask)
        coordinators.share_with(self.remote, groups, fencing)
        ownership.on_change(self._acquired, self._released)

    def count_again(self) -> None:
        """Call it when the cluster's number of coordinators may have changed."""
        self._coordinators.count = self._count()

    def start(self) -> None:
        """Call it when the broker serves."""
        self._tasks.start(self._look_after(), "coordinators without a broker")

    async def close(self) -> None:
        """Idempotent."""
        await self._tasks.close()
        await self.remote.close()

    def _serves(self, coordinator_id: int) -> bool:
        return self._ownership.owns(assign_partition(coordinator_id))

    # Ownership

    def _acquired(self, bundle: Bundle) -> None:
        self.remote.forget_open()
        for coordinator_id in self._in(bundle):
            self._coordinators.take(coordinator_id)

    async def _released(self, bundle: Bundle) -> None:
        for coordinator_id in self._in(bundle):
            await self._coordinators.release(coordinator_id)

    def _in(self, bundle: Bundle) -> list[int]:
        self._coordinators.count = self._count()
        if bundle.namespace != COORDINATOR_ASSIGN.namespace_name:
            return []
        return [
            each for each in range(self._coordinators.count) if bundle.holds(assign_partition(each))
        ]

    async def _look_after(self) -> None:
        while True:
            self._coordinators.count = self._count()
            for coordinator_id in self._coordinators.begun_ids():
                await self._see_that_it_is_served(coordinator_id)
            for name in self._other_logs():
                await self._owner_of(name)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _see_that_it_is_served(self, coordinator_id: int) -> None:
        is_here = await self._owner_of(assign_partition(coordinator_id))
        if is_here and self._coordinators.serving(coordinator_id) is None:
            self._coordinators.take(coordinator_id)

    async def _owner_of(self, name: TopicName) -> bool:
        """Whether this broker serves it; it takes what has no broker, if it should."""
        try:
            return await self._ownership.owner_of(name) is None
        except PulsarError as error:
            log.info("cannot find out which broker serves %s: %s", name, error)
            return False

    # Questions

    async def _ask(self, asked: Participation, principal: str | None = None) -> Answer | None:
        txn_id = asked.txn_id
        if txn_id.most >= self._count():
            await self._ownership.refreshed()  # another broker may have just raised the number
        if txn_id.most >= self._count():
            raise TransactionNotFound(
                f"Transaction {txn_id} names a coordinator that does not exist"
            )
        broker = await self._ownership.owner_of(assign_partition(txn_id.most))
        if broker is None:
            return await self._own_answer(asked)
        if not await self._peers.answers_questions(broker):
            return None
        if asked.session is not None and not await self._peers.fences_sessions(broker):
            raise NotAllowed(
                f"{broker.broker_url} serves the coordinator of transaction {txn_id} and does not "
                "know transactional ids: producers with one cannot publish in it"
            )
        command = pb.CommandAskTransaction(
            txnid_most_bits=txn_id.most,
            txnid_least_bits=txn_id.least,
            topic=asked.topic,
            subscription=asked.subscription,
            principal=principal,
        )
        if asked.session is not None:
            command.transactional_id = asked.session.id.name
            command.session_epoch = asked.session.epoch
            if asked.session.id.owner is not None:
                command.transactional_id_owner = asked.session.id.owner
        answer = await self._peers.request(broker, command)
        status = TxnStatus(answer.status) if answer.HasField("status") else None
        return Answer(
            TxnStatus.PREPARED if answer.prepared else status,
            answer.takes_part,
            answer.owner if answer.HasField("owner") else None,
            answer.reason,
            _session_of(answer),
        )

    async def _own_answer(self, asked: Participation) -> Answer:
        """The answer if this broker has acquired the coordinator meanwhile."""
        coordinator = await self._coordinators.get(asked.txn_id.most)
        require_begun(coordinator, asked.txn_id)
        return Answer(
            coordinator.status(asked.txn_id),
            False,
            self._coordinators.ever_owner_of(asked.txn_id),
            coordinator.why_aborted(asked.txn_id),
        )


def _session_of(answer: pb.CommandAskTransactionResponse) -> SessionRef | None:
    if not answer.HasField("transactional_id"):
        return None
    has_owner = answer.HasField("transactional_id_owner")
    owner = answer.transactional_id_owner if has_owner else None
    return SessionRef(TransactionalId(owner, answer.transactional_id), answer.session_epoch)
