"""Fixtures with the storage seam on simulated bookies, to replace those of tests/managed_ledger."""

import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from short_names import ShortNames
from sim_bookie import MAX_QUEUED
from sim_ledger import LIMITS, SESSION_MS, LedgerLife
from sim_zookeeper import ADDRESS

from managed_ledger.storage.backend import Backend
from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend, ClusterConfig
from managed_ledger.storage.bookkeeper.quorums import Quorums
from pybroker.simulation.node import Node
from pybroker.simulation.world import SimulatedClock


@pytest.fixture(params=range(2))
def life(request: Any) -> Iterator[LedgerLife]:
    life = LedgerLife(request.param)
    life.world.sleep(5.0)  # the bookies register
    yield life
    life.world.close()


@pytest.fixture
def process(life: LedgerLife) -> Node:
    return life.node("broker")


@pytest.fixture
def make_backend(life: LedgerLife) -> Callable[[], Backend]:
    starts = itertools.count()

    def made() -> Backend:
        rng = life.world.stream(f"backend {next(starts)}")
        quorums = Quorums(1, 1, 1) if len(life.disks) == 1 else Quorums(2, 2, 2)
        config = ClusterConfig(
            session_timeout_ms=SESSION_MS,
            quorums=quorums,
            limits=LIMITS,
            families=(ShortNames(),),
        )
        return BookKeeperBackend(ADDRESS, SimulatedClock(life.world), rng, config)

    return made


@pytest.fixture
def run(life: LedgerLife, process: Node) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    return lambda scenario: life.world.call(process, scenario)


@pytest.fixture
def append_at_once() -> int:
    """Simulated bookies refuse more adds than this; refused ones are resent after each pause."""
    return MAX_QUEUED
