"""What transactions need in a cluster of brokers; a standalone broker has none of it."""

from collections.abc import Callable

from pybroker.base.names import COORDINATOR_ASSIGN
from pybroker.base.runtime import Clock
from pybroker.broker.ownership import Ownership
from pybroker.broker.topics import Topics
from pybroker.cluster.transactions.coordinators import SharedCoordinators
from pybroker.cluster.transactions.fencing import Neighbours, SharedFencing
from pybroker.cluster.transactions.participants import SharedParticipants
from pybroker.cluster.transactions.peers import PeerOptions, Peers
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.participants import Participants


class SharedTransactions:
    """Create it before the broker starts, `start` it when it serves, `close` it before it stops."""

    def __init__(
        self,
        ownership: Ownership,
        topics: Topics,
        coordinators: Coordinators,
        local: Participants,
        clock: Clock,
        neighbours: Neighbours,
        options: PeerOptions | None = None,
    ) -> None:
        """`local` ends transactions on topics of this broker."""
        self.peers = Peers(options)
        self.participants = SharedParticipants(local, ownership, self.peers)
        self.fencing = SharedFencing(neighbours, coordinators, ownership, self.peers)
        self._coordinators = SharedCoordinators(
            coordinators, ownership, self.peers, clock, _count(topics), self.fencing
        )

    def start(self) -> None:
        self._coordinators.start()

    async def leave(self) -> None:
        """Before the broker leaves the live ones. Idempotent."""
        await self.fencing.leave()

    async def close(self) -> None:
        """Idempotent. The next owner repeats ends that are in progress on other brokers."""
        await self._coordinators.close()
        await self.peers.close()


def _count(topics: Topics) -> Callable[[], int]:
    return lambda: topics.tenants.partitions(COORDINATOR_ASSIGN)
