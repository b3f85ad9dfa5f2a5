"""Brokers' sessions in the simulated world, on one ZooKeeper."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bookkeeper"))

from cluster_world import ClusterWorld


@pytest.fixture(params=range(2))
def world(request: Any) -> Iterator[ClusterWorld]:
    world = ClusterWorld(request.param)
    yield world
    world.close()
