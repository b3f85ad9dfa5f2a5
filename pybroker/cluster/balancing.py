"""Limits the load of bundles and brokers: splits large bundles, and releases bundles.

    a bundle with too many topics, or producers and consumers     is split; its topics stay open
    a broker with bundles that belong on a less loaded broker     releases the least used of them

Each broker examines only itself, at an interval (loadBalancerSheddingIntervalMinutes). Lookups send
clients of a released bundle to the broker that ranks first by hash among those below the bound
(`placement.py`), so the bundle does not move back.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from managed_ledger.storage.zookeeper.errors import ZooKeeperError
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import PulsarError
from pybroker.base.names import SYSTEM_NAMESPACE
from pybroker.base.runtime import Tasks
from pybroker.broker.brokers.bundle_sizes import place_to_split
from pybroker.broker.brokers.ownership import Bundle
from pybroker.cluster.boundaries import Boundaries
from pybroker.cluster.bundle_ownership import BundleOwnership, FormerBundle
from pybroker.cluster.placement import should_move

log = logging.getLogger(__name__)
_A_MINUTE_S: Final = 60.0


class BundleSize(NamedTuple):
    hashes: list[int]  # of the loaded topics
    sessions: int  # producers and consumers


class Balancing:
    def __init__(
        self,
        ownership: BundleOwnership,
        boundaries: Boundaries,
        size_of: Callable[[Bundle], BundleSize],
        config: BrokerConfig,
    ) -> None:
        self._ownership = ownership
        self._boundaries = boundaries
        self._size_of = size_of
        self._config = config
        self._tasks = Tasks("balancing")

    def start(self) -> None:
        self._tasks.start(self._look_after(), "balancing of bundles")

    async def close(self) -> None:
        """Idempotent."""
        await self._tasks.close()

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(self._config.load_balancer_shedding_interval_minutes * _A_MINUTE_S)
            try:
                await self.balance()
            except (PulsarError, ZooKeeperError) as error:
                log.info("bundles are not balanced now: %s", error)

    async def balance(self) -> None:
        """Examine this broker once. Raises ZooKeeperError, ServiceNotReady."""
        if self._config.load_balancer_auto_bundle_split_enabled:
            for bundle in self._ownership.owned():
                with suppress(FormerBundle):  # its halves are examined next time
                    await self._divide_if_large(bundle)
        if self._config.load_balancer_shedding_enabled:
            await self._give_one_back()

    async def _divide_if_large(self, bundle: Bundle) -> None:
        config, size = self._config, self._size_of(bundle)
        bundles = len(self._boundaries.known(bundle.namespace)) - 1
        topics, sessions = len(size.hashes), size.sessions
        is_large = (
            topics > config.load_balancer_namespace_bundle_max_topics
            or sessions > config.load_balancer_namespace_bundle_max_sessions
        )
        if not is_large or bundle.namespace == SYSTEM_NAMESPACE:
            return
        if (
            len(set(size.hashes)) < 2
        ):  # all segments of a scalable topic have one: they stay together
            return
        if bundles >= config.load_balancer_namespace_maximum_bundles:
            log.warning(
                "%s is large (%d topics, %d producers and consumers) but its namespace has %d "
                "bundles already: raise loadBalancerNamespaceMaximumBundles to split it",
                bundle,
                topics,
                sessions,
                bundles,
            )
            return
        log.info("%s has %d topics, %d producers and consumers", bundle, topics, sessions)
        await self._ownership.split(bundle, place_to_split(bundle, size.hashes))

    async def _give_one_back(self) -> None:
        own_id, counts = self._ownership.brokers.own_id, self._ownership.counts()
        movable = [
            each for each in self._ownership.owned() if should_move(str(each), own_id, counts)
        ]
        if movable:
            quietest = min(movable, key=lambda bundle: self._size_of(bundle).sessions)
            log.info("this broker has %d bundles: it releases %s", counts[own_id], quietest)
            await self._ownership.release(quietest)
