"""Managed ledgers on simulated bookies that die: what was told is true, and the log goes on."""

import logging
from collections.abc import Iterator

import pytest
from sim_bugs import MANAGED_BUGS
from sim_managed_ledger import ManagedLife

QUICK_SEEDS = range(12)
MANY_SEEDS = range(12, 500)
CAUGHT_WITHIN = 500


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Lost bookies are what these worlds are about."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def run_seeds(seeds: range) -> tuple[int, int]:
    """How many entries were confirmed, and how many refused for certain."""
    confirmed = refused = 0
    for seed in seeds:
        life = ManagedLife(seed)
        try:
            life.live()
        except Exception as wrong:
            raise AssertionError(f"seed {seed}: {wrong}") from wrong
        confirmed += sum(len(each.confirmed) for each in life.brokers)
        refused += sum(len(each.refused) for each in life.brokers)
    return confirmed, refused


@pytest.mark.slow
def test_managed_ledgers_survive_the_first_seeds():
    confirmed, refused = run_seeds(QUICK_SEEDS)
    assert confirmed > 50 * len(QUICK_SEEDS)
    assert refused


@pytest.mark.slow
def test_managed_ledgers_survive_many_seeds():
    run_seeds(MANY_SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("bug", MANAGED_BUGS)
def test_deliberate_bugs_are_caught(bug):
    with MANAGED_BUGS[bug](), pytest.raises(AssertionError, match="seed"):
        run_seeds(range(CAUGHT_WITHIN))
