"""Several brokers, their bookies, ZooKeeper and clients in one process, from seeds."""

import logging
from collections.abc import Iterator

import pytest
from brokers.simulation import ClusterSimulation

QUICK_SEEDS = range(100, 101)
MANY_SEEDS = [range(first, first + 17) for first in range(101, 186, 17)]  # a time limit each


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Lost connections are expected in these worlds."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def replay(seed: int) -> str:
    return f"python -m tests.simulation --cluster --seed {seed}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "seeds", [QUICK_SEEDS, *(pytest.param(each, marks=pytest.mark.slow) for each in MANY_SEEDS)]
)
def test_several_brokers_keep_every_promise(seeds):
    for seed in seeds:
        assert ClusterSimulation(seed).run().violations == [], replay(seed)


@pytest.mark.slow
def test_a_seed_does_not_depend_on_the_seeds_before_it():
    first = ClusterSimulation(47).run().digest
    ClusterSimulation(45).run()
    assert ClusterSimulation(47).run().digest == first
