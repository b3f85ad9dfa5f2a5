"""Sessions of brokers on a simulated ZooKeeper: bundle ownership, without topics or clients."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from sim_ledger import LedgerLife
from sim_zookeeper import ADDRESS

from managed_ledger.storage.bookkeeper.backend import ClusterConfig
from managed_ledger.storage.bookkeeper.key_paths import path_of
from managed_ledger.storage.zookeeper.client import ZooKeeper
from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import BrokerAddress, Bundle
from pybroker.cluster.boundaries import Boundaries
from pybroker.cluster.bundle_ownership import BundleOwnership
from pybroker.cluster.live_brokers import LiveBrokers
from pybroker.cluster.node_values import Place, broker_value
from pybroker.simulation.node import Node

TIMEOUT_MS: Final = 3000
BUNDLES: Final = 4
METADATA: Final = ClusterConfig().metadata_root


class Member:
    """A broker's part of the cluster; `events` records the bundles that it takes and releases."""

    def __init__(self, world: "ClusterWorld", name: str, node: Node) -> None:
        self.name = name
        self.node = node
        self.place = Place(BrokerAddress(f"pulsar://{name}:6650", "", f"http://{name}:8080", ""))
        self.zookeeper = ZooKeeper(ADDRESS, world.life.world.stream(name), TIMEOUT_MS)
        self.brokers = LiveBrokers(self.zookeeper)
        boundaries = Boundaries(self.zookeeper, BUNDLES, partial(path_of, METADATA))
        self.ownership = BundleOwnership(self.zookeeper, boundaries, self.brokers, self._caught_up)
        self._boundaries = boundaries
        self.events: list[tuple[str, Bundle]] = []
        self.holds: Callable[[], Coroutine[Any, Any, None]] | None = None  # a slow release
        self.ownership.on_change(self._came, self._goes)

    async def start(self) -> None:
        await self.zookeeper.open()
        await self._boundaries.open()
        await self.brokers.open()
        await self.ownership.open()
        await self.brokers.join(f"{self.name}:8080", broker_value(self.place, "1", 0), 60)
        self.ownership.serve(self.place)

    async def stop(self) -> None:
        await self.brokers.leave()
        await self.ownership.give_all_back()
        await self.zookeeper.close()

    async def _caught_up(self) -> None:
        await asyncio.sleep(0.01)

    def _came(self, bundle: Bundle) -> None:
        self.events.append(("came", bundle))

    async def _goes(self, bundle: Bundle) -> None:
        if self.holds is not None:
            await self.holds()
        self.events.append(("goes", bundle))


class ClusterWorld:
    def __init__(self, seed: int) -> None:
        self.life = LedgerLife(seed)

    def close(self) -> None:
        self.life.world.close()

    def member(self, name: str) -> Member:
        """A broker that has joined."""
        node = self.life.node(name)
        member = self.life.world.call(node, self._made(name, node))
        assert isinstance(member, Member)
        return member

    async def _made(self, name: str, node: Node) -> Member:
        member = Member(self, name, node)
        await member.start()
        return member

    def call(self, member: Member, work: Coroutine[Any, Any, Any]) -> Any:
        return self.life.world.call(member.node, work)

    def until(self, fact: Callable[[], bool]) -> None:
        self.life.world.run(fact, 60)
        assert fact()

    def owner(self, asked: Member, name: TopicName) -> str | None:
        """The URL of another broker; None: `asked` itself."""
        found = self.call(asked, asked.ownership.owner_of(name))
        return None if found is None else str(found.broker_url)
