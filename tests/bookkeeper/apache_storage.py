"""Several storages on the simulated cluster, with all records in Apache Pulsar's formats."""

import json
from collections.abc import Callable
from typing import Any, Self

import pytest
from sim_ledger import LIMITS, SESSION_MS, LedgerLife
from sim_zookeeper import ADDRESS
from simulated_storage import life  # noqa: F401

from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend, ClusterConfig
from managed_ledger.storage.bookkeeper.quorums import Quorums
from pybroker.formats.apache.families import in_apaches_formats
from pybroker.simulation.world import SimulatedClock


class Storage:
    def __init__(self, backend: BookKeeperBackend) -> None:
        self.backend = backend
        self.metadata = backend.metadata

    async def __aenter__(self) -> Self:
        await self.backend.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.backend.close()

    async def node(self, path: str) -> bytes:
        return (await self.backend.zookeeper.get(path)).value

    async def seen(self) -> None:
        """Wait until all changes so far are in memory."""
        await self.backend.zookeeper.sync("/admin")
        await self.backend.caught_up()

    def value(self, key: str) -> Any:
        found = self.metadata.get(key)
        return None if found is None else json.loads(found.value)


@pytest.fixture
def storage(life: LedgerLife) -> Callable[[], Storage]:  # noqa: F811
    made = iter(range(100))

    def new() -> Storage:
        config = ClusterConfig(
            session_timeout_ms=SESSION_MS, quorums=Quorums(1, 1, 1), limits=LIMITS
        )
        config = in_apaches_formats(config, "east", {"boundaries": [], "numBundles": 1})
        rng = life.world.stream(f"backend {next(made)}")
        return Storage(BookKeeperBackend(ADDRESS, SimulatedClock(life.world), rng, config))

    return new
