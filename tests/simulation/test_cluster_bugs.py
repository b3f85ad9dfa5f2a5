"""Wrong cluster brokers: the simulation must catch each by the promise that it breaks.

As in test_deliberate_bugs.py, `hint` is a seed that has caught the bug; it is tried first.
"""

from itertools import chain

import pytest
from brokers.bugs import BUGS
from brokers.simulation import ClusterSimulation
from test_cluster_simulation import quiet  # noqa: F401

WITHIN_SEEDS = 500
_SPLITTING = ("splitting over brokers",)
# By bug: its features, the hint, and the start of the violation.
CASES = {
    "absence-is-believed": (("late mirrors",), 1, "REFUSED"),
    "any-bundle-is-given-back": (("balanced bundles",), 0, "RESTLESS"),
    "children-before-their-parents": (_SPLITTING, 45, "KEY ORDER"),
    "children-without-subscriptions": (_SPLITTING, 0, "LOSS"),
    "commits-lost-with-sealed-parents": (_SPLITTING, 0, "LOSS"),
    "copies-are-believed": (("damaged bookie",), 3, ""),
    "decided-one-by-one": (("committing together",), 3, "HALF TOGETHER"),
    "divisions-are-believed": (("divided bundles", "unloading"), 57, "UNMOVED"),
    "each-counts-its-coordinators": (("unlike settings",), 1, "STUCK"),
    "end-without-the-bundle-is-ok": (("restless bundles",), 3, "STILL OPEN"),
    "few-copies-for-ever": (("absent bookies",), 2, "FEW COPIES"),
    "forgotten-logs-stay": (("copying", "restless bundles"), 32, "STUCK"),
    "former-brokers-keep-their-parts": (("migrating over brokers",), 2, "UNHANDLED"),
    "former-bundles-stay": (("administration",), 1, "LEFT"),
    "group-half-decided": (("groups",), 1, "HALF TOGETHER"),
    "halves-count-before-the-split": (("divided bundles",), 3, "UNHANDLED"),
    "ids-are-taken-for-addresses": (("ids of bookies",), 0, "STUCK"),
    "interrupted-deletions-stay": (("administration", "exodus"), 28, "UNFINISHED"),
    "latest-aborts-are-not-handed-over": (("handing over",), 1, "UNNAMED"),
    "members-are-told-once": (("groups", "restless bundles"), 15, "STILL OPEN"),
    "migrations-are-not-heeded": (("deleting beside migrations",), 11, "UNFINISHED"),
    "no-entry-by-timeout": (("exodus", "partitions"), 44, "STILL OPEN"),
    "one-copy-is-enough": (("power cuts",), 6, "LOSS"),
    "others-are-not-asked-to-fence": (("fencing over brokers",), 28, "FENCED WRITE"),
    "parts-stay-where-they-are": (("migrating over brokers",), 0, "STUCK"),
    "promises-are-kept-to-oneself": (("sent bundles",), 0, "ASTRAY"),
    "recovery-add-on-the-normal-path": (("exodus",), 197, "FORGOTTEN"),
    "serving-after-the-session-is-lost": ((), 0, ""),
    "silent-bookies-are-waited-for": (("castaways",), 16, "STUCK"),
    "system-topics-are-deduplicated": (("handing over",), 1, "TRIMMED"),
    "timeouts-by-each-wall-clock": (("clocks apart",), 4, "NEEDLESS ABORT"),
    "torn-appends-taken-for-whole": (("exodus", "copying"), 64, "LOSS"),
    "two-layouts-of-one-epoch": (_SPLITTING, 0, "TWO LAYOUTS"),
    "unloaded-wherever-it-is": (("unloading",), 2, "UNMOVED"),
}


def violations(case, seed):
    features, _, promise = case
    found = ClusterSimulation(seed, features).run().violations
    return [each for each in found if each.startswith(promise)]


def test_every_bug_of_a_cluster_has_a_case():
    assert sorted(CASES) == sorted(BUGS)


def test_every_bug_of_a_cluster_fits_the_code_as_it_is():
    for bug in BUGS.values():
        with bug():
            pass


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bug", sorted(CASES))
def test_a_deliberate_bug_of_a_cluster_is_caught_within_500_seeds(bug):
    case = CASES[bug]
    with BUGS[bug]():
        seeds = chain((case[1],), range(WITHIN_SEEDS))
        caught = next((seed for seed in seeds if violations(case, seed)), None)
    assert caught is not None
    assert violations(case, caught) == [], "without the bug"
