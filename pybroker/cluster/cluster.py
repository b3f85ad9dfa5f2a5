"""This broker as a member of its cluster: it joins, serves bundles, and leaves or is lost.

The state of the ZooKeeper session decides. While it is CONNECTED, the broker acquires and releases
bundles. While it is SUSPENDED, the broker acquires no bundle and loads no topic. When it is
EXPIRED, other brokers may own the bundles already, so `lost` is called, which ends the process: it
must not answer from outdated memory.
"""

import logging
from asyncio import timeout
from collections.abc import Awaitable, Callable, Mapping

from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.session import SessionState
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.base.runtime import Clock
from pybroker.base.version import version
from pybroker.broker.brokers.ownership import BrokerAddress, Bundle
from pybroker.cluster.admin_client import AdminClient
from pybroker.cluster.balancing import Balancing, BundleSize
from pybroker.cluster.boundaries import Boundaries
from pybroker.cluster.bundle_ownership import ANSWER_S, BundleOwnership, as_not_ready
from pybroker.cluster.bundles import ClusterBundles
from pybroker.cluster.live_brokers import DifferentSettings, LiveBrokers
from pybroker.cluster.node_values import Place, broker_value
from pybroker.cluster.transactions.peers import PeerOptions

log = logging.getLogger(__name__)


class Cluster:
    def __init__(
        self,
        zookeeper: ZooKeeper,
        caught_up: Callable[[], Awaitable[None]],
        path_of: Callable[[str], str],
        clock: Clock,
        bundles: int,
        session_timeout_ms: int,
        lost: Callable[[str], None],
        peers: PeerOptions,
        common: Mapping[str, str],
    ) -> None:
        """`path_of` returns the node of a key of the metadata. `bundles`: the number of bundles for
        a namespace that no broker has divided yet. `lost` is called once, with the reason, and
        should not return. `common`: the settings that must be the same on all brokers, by key.
        """
        self._zookeeper = zookeeper
        self._clock = clock
        self._common = common
        self._boundaries = Boundaries(zookeeper, bundles, path_of)
        self.live = LiveBrokers(zookeeper)
        self._session_timeout_s = session_timeout_ms / 1000
        self._lost = lost
        self.ownership = BundleOwnership(zookeeper, self._boundaries, self.live, caught_up)
        self.bundles = ClusterBundles(self._boundaries, self.ownership)
        self.admin = AdminClient(self.live, peers)
        self._suspended: list[Callable[[], None]] = []
        zookeeper.on_state(self._session_is)

    @property
    def broker_id(self) -> str:
        return self.live.own_id

    def brokers(self) -> list[str]:
        return list(self.live.all())

    async def others(self) -> list[BrokerAddress]:
        """Implements Neighbours."""
        with as_not_ready("which brokers are in the cluster"):
            async with timeout(ANSWER_S):
                places = await self.live.current()
        for broker_id, place in places.items():
            if place is None:
                raise ServiceNotReady(
                    f"{broker_id} is in the cluster, and its entry in ZooKeeper cannot be read"
                )
        return [
            place.address
            for broker_id, place in places.items()
            if place is not None and broker_id != self.broker_id
        ]

    @property
    def is_certain(self) -> bool:
        """Implements Neighbours."""
        return bool(self.broker_id) and self._zookeeper.is_certain

    def place_by(self, place_of: Callable[[TopicName], TopicName]) -> None:
        """`place_of` returns the name whose hash decides in which bundle a topic is."""
        self._boundaries.place_of = place_of

    def on_suspended(self, suspended: Callable[[], None]) -> None:
        self._suspended.append(suspended)

    def balancing(self, size_of: Callable[[Bundle], BundleSize], config: BrokerConfig) -> Balancing:
        return Balancing(self.ownership, self._boundaries, size_of, config)

    async def open(self) -> None:
        """Read the cluster's state; ZooKeeper's client must be open. Raises ZooKeeperError."""
        await self._boundaries.open()
        await self.live.open()
        await self.ownership.open()

    async def join(self, broker_id: str, place: Place) -> None:
        """Register this broker and begin to serve. Raises NameTaken, DirectoryInUse (`pybroker
        move` copies the cluster), DifferentSettings, ZooKeeperError.
        """
        value = broker_value(place, version(), self._clock.now_ms(), self._common)
        # An earlier process with this address remains registered until its session ends.
        await self.live.join(broker_id, value, 2 * self._session_timeout_s + 5)
        try:
            await self.live.require_common(broker_id, self._common)
        except DifferentSettings:
            await self.live.leave()
            raise
        self.ownership.serve(place)

    async def leave(self) -> None:
        """Unregister this broker and give all bundles back. Idempotent. Raises ZooKeeperError."""
        await self.live.leave()
        await self.ownership.give_all_back()

    async def close(self) -> None:
        await self.ownership.close()
        await self.live.close()
        await self._boundaries.close()

    def _session_is(self, state: SessionState) -> None:
        if state is SessionState.SUSPENDED:
            log.warning("no connection to ZooKeeper: no topics are loaded until it is back")
            for suspended in self._suspended:
                suspended()
        elif state is SessionState.CONNECTED:
            log.info("connected to ZooKeeper")
        elif state is SessionState.EXPIRED:
            self._lost("its session with ZooKeeper has ended: other brokers take over its topics")
