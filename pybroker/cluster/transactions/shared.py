"""The parts that transactions need only in a cluster of brokers."""

from collections.abc import Callable, Iterable

from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import COORDINATOR_ASSIGN, TopicName
from pybroker.base.runtime import Clock
from pybroker.broker.brokers.ownership import BrokerAddress, Ownership
from pybroker.broker.topics import Topics
from pybroker.cluster.transactions.coordinators import SharedCoordinators
from pybroker.cluster.transactions.fencing import Neighbours, SharedFencing
from pybroker.cluster.transactions.participants import SharedParticipants
from pybroker.cluster.transactions.peers import PeerOptions, Peers
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.ends.participants import Participants
from pybroker.wire import pulsar_api_pb2 as pb


class SharedTransactions:
    """Create it before the broker starts. Call `start` when the broker serves, and `close` before
    it stops.
    """

    def __init__(
        self,
        ownership: Ownership,
        topics: Topics,
        coordinators: Coordinators,
        local: Participants,
        clock: Clock,
        neighbours: Neighbours,
        options: PeerOptions | None = None,
        other_logs: Callable[[], Iterable[TopicName]] = tuple,
    ) -> None:
        """`local` ends transactions on this broker's topics. `other_logs`: what else must never be
        without a broker, by names of topics.
        """
        self.peers = Peers(options)
        self.participants = SharedParticipants(local, ownership, self.peers)
        self.fencing = SharedFencing(neighbours, coordinators, ownership, self.peers)
        self._coordinators = SharedCoordinators(
            coordinators, ownership, self.peers, clock, _count(topics), self.fencing, other_logs
        )

    def count_again(self) -> None:
        """Call it when the cluster's number of coordinators may have changed."""
        self._coordinators.count_again()

    def start(self) -> None:
        self._coordinators.start()

    async def ask_kafka(
        self, broker: BrokerAddress, command: pb.CommandKafkaTransaction
    ) -> pb.CommandKafkaTransactionResponse:
        """Raises ServiceNotReady, also if the broker does not serve Kafka's clients."""
        if not await self.peers.has_kafka_producers(broker):
            raise ServiceNotReady(
                f"{broker.broker_url or broker.broker_url_tls} has the producer, and does not "
                "serve Kafka's clients: start it with --kafka"
            )
        answer: pb.CommandKafkaTransactionResponse = await self.peers.request(broker, command)
        return answer

    async def leave(self) -> None:
        """Call it before the broker leaves the live brokers. Idempotent."""
        await self.fencing.leave()

    async def close(self) -> None:
        """Idempotent. The coordinators' next broker repeats ends in progress on other brokers."""
        await self._coordinators.close()
        await self.participants.close()
        await self.peers.close()


def _count(topics: Topics) -> Callable[[], int]:
    return lambda: topics.tenants.partitions(COORDINATOR_ASSIGN)
