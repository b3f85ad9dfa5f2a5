"""Brokers' sessions in the simulated world, on one ZooKeeper."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bookkeeper"))

from broker_processes import BrokerProcess
from cluster_world import ClusterWorld
from servers import Cluster


@pytest.fixture(params=range(2))
def world(request: Any) -> Iterator[ClusterWorld]:
    world = ClusterWorld(request.param)
    yield world
    world.close()


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[str]:
    """The service URL of two real brokers on real bookies."""
    with Cluster() as storage:
        brokers = [BrokerProcess(tmp_path, name, storage.zookeeper_address) for name in "ab"]
        yield ",".join(each.service_url for each in brokers).replace(",pulsar://", ",")
        for each in brokers:
            each.kill()
