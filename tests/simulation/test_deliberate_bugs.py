"""Known defects, put back one at a time: the simulation must catch each of them.

HINTS are seeds that were seen to catch a bug when they were written down. They are tried first and
say nothing about how soon a bug is found from nowhere: the range behind them does, when all of them
miss, as they will once a change of the simulation has dealt every seed another hand.
"""

from itertools import chain

import pytest
from bugs import BUGS
from sim_seed import Simulation

WITHIN_SEEDS = 2000
HINTS: dict[str, tuple[int, ...]] = {
    "aborted-ranges-forgotten": (4,),
    "copy-answered-as-duplicate": (3,),
    "deleted-ledgers-left": (81,),
    "deletion-without-a-tombstone": (2,),
    "end-believed-from-anybody": (7,),
    "impossible-participants": (2,),
    "key-given-away-in-flight": (37,),
    "markers-tell-the-time": (72,),
    "metadata-believed-at-recovery": (17,),
    "missing-descriptors-end-it": (8,),
    "outcome-dropped": (1,),
    "pending-ack-forgotten-at-recovery": (1,),
    "pending-ack-logs-share-a-name": (25,),
    "receipt-before-the-fsync": (2,),
    "recovered-cursors-never-written": (113,),
    "snapshot-forgets-partial-batches": (74,),
    "unload-drops-pending-acks": (67,),
}


def test_every_hint_is_for_a_bug():
    assert HINTS.keys() <= BUGS.keys()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_deliberate_bug_is_caught_within_2000_seeds(bug):
    with BUGS[bug]():
        seeds = chain(HINTS.get(bug, ()), range(WITHIN_SEEDS))
        assert any(Simulation(seed).run().violations for seed in seeds)
