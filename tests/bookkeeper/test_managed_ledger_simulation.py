"""Managed ledgers on simulated bookies that die: outcomes are true, and the log continues."""

import logging
from collections.abc import Iterable, Iterator

import pytest
from sim_bugs import MANAGED_BUGS
from sim_managed_ledger import ManagedLife

from managed_ledger.errors import LedgerEnded
from managed_ledger.rollover import Rollover

QUICK_SEEDS = range(12)
MANY_SEEDS = [range(12, 100), range(100, 188)]
CAUGHT_WITHIN = 500
# Seeds that once found a bug; tried first.
HINTS = {
    "appends_that_do_not_wait_for_properties": 2,
    "full_ledgers_left_open": 0,
    "no_ledger_after_one_that_ended": 23,
    "what_ended_is_appended_again_out_of_order": 3,
    "what_ended_is_appended_again_unseen": 3,
    "a_fence_taken_for_a_certain_failure": 234,
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the warnings: these worlds lose bookies on purpose."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def run_seeds(seeds: Iterable[int]) -> int:
    """Run the seeds; returns the number of confirmed entries."""
    confirmed = 0
    for seed in seeds:
        life = ManagedLife(seed)
        try:
            life.live()
        except Exception as wrong:
            raise AssertionError(f"seed {seed}: {wrong}") from wrong
        confirmed += sum(len(each.confirmed) for each in life.brokers)
    return confirmed


@pytest.mark.slow
def test_managed_ledgers_survive_the_first_seeds(monkeypatch):
    again, troubled = [], Rollover.when_troubled

    def counted(self, ended):
        if isinstance(ended, LedgerEnded):
            again.append(len(self._appender._held))
        troubled(self, ended)

    monkeypatch.setattr(Rollover, "when_troubled", counted)
    assert run_seeds(QUICK_SEEDS) > 50 * len(QUICK_SEEDS)
    assert sum(again), "some ledger ended with appends on their way"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", MANY_SEEDS, ids=str)
def test_managed_ledgers_survive_many_seeds(seeds):
    run_seeds(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("bug", MANAGED_BUGS)
def test_deliberate_bugs_are_caught(bug):
    with MANAGED_BUGS[bug](), pytest.raises(AssertionError, match="seed"):
        run_seeds((HINTS[bug], *range(CAUGHT_WITHIN)))
