"""Three real bookies and ZooKeeper for all tests of a worker, and the storage seam on them."""

import asyncio
import itertools
import random
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "managed_ledger"))

from bookkeeper_client import WallClock
from servers import Cluster
from short_names import ShortNames

from managed_ledger.storage.backend import Backend
from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend, ClusterConfig
from managed_ledger.storage.bookkeeper.bookies import BookieLimits
from managed_ledger.storage.bookkeeper.quorums import Quorums

pytest.register_assert_rewrite(
    "test_backend_contract",
    "test_cursor",
    "test_factory",
    "test_ledger",
    "test_ledger_meanwhile",
    "test_ledger_upkeep",
    "test_trim",
)

LIMITS = BookieLimits(quarantine_s=2.0)
_roots = itertools.count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def make_backend(cluster: Cluster) -> Callable[..., Backend]:
    """Each call is a restart: another process on the same metadata."""
    root = f"/pybroker/test{next(_roots)}"

    def made(quorums: Quorums | None = None) -> Backend:
        config = ClusterConfig(
            metadata_root=root,
            session_timeout_ms=4000,
            quorums=quorums or Quorums(3, 3, 2),
            limits=LIMITS,
            families=(ShortNames(f"{root}-managed-ledgers"),),
        )
        return BookKeeperBackend(
            cluster.zookeeper_address, WallClock(), random.Random(root), config
        )

    return made


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return asyncio.run
