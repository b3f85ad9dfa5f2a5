"""Simulated bookies and ZooKeeper: no confirmed entry is lost, and all agree on a ledger's end."""

import logging
from collections.abc import Iterator

import pytest
from sim_bugs import BUGS
from sim_ledger import LedgerLife

QUICK_SEEDS = range(25)
MANY_SEEDS = [range(25, 200), range(200, 375)]
CAUGHT_WITHIN = 500


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the warnings: these worlds lose connections on purpose."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def run_seeds(seeds: range) -> int:
    confirmed = 0
    for seed in seeds:
        life = LedgerLife(seed)
        try:
            life.live()
        except Exception as wrong:
            raise AssertionError(f"seed {seed}: {wrong}") from wrong
        confirmed += len(life.told.confirmed)
    return confirmed


@pytest.mark.slow
def test_ledgers_survive_the_first_seeds():
    assert run_seeds(QUICK_SEEDS) > 20 * len(QUICK_SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", MANY_SEEDS, ids=str)
def test_ledgers_survive_many_seeds(seeds):
    run_seeds(seeds)


def test_a_seed_repeats_itself():
    def outcome() -> tuple[object, ...]:
        life = LedgerLife(7)
        life.live()
        return life.world.steps, life.world.now, life.told.confirmed, life.told.ends

    assert outcome() == outcome()


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_deliberate_bugs_are_caught(bug):
    with BUGS[bug](), pytest.raises(AssertionError, match="seed"):
        run_seeds(range(CAUGHT_WITHIN))
