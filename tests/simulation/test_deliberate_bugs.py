"""Known defects, reintroduced one at a time: the simulation must catch each by its broken promise.

Each case enables only the features that matter for it, so that its seeds keep their meaning when
features are added. With all features drawn, the bug is caught later, but it is caught. `hint` is a
seed that caught it when it was recorded. It is tried first; the range after it tells how soon a bug
is found without a hint.
"""

from dataclasses import dataclass
from itertools import chain

import pytest
from bugs import BUGS
from sim_seed import Simulation

WITHIN_SEEDS = 2000


@dataclass(frozen=True)
class Case:
    promise: str  # the start of its violation
    hint: int
    features: tuple[str, ...] = ()

    def violations(self, seed: int) -> list[str]:
        return Simulation(seed, self.features).run().violations

    def is_caught(self, seed: int) -> bool:
        return any(text.startswith(self.promise) for text in self.violations(seed))


ENDS_AT_ONCE = ("ends at once",)
FULL_DISK = ("full disk",)
HOSTILE = ("hostility",)
REBIRTH = ("rebirth",)
SMALL_AND_UNLOADED = ("small logs", "unloads")
CASES = {
    "acknowledgements-overtake": Case("NEEDLESS REFUSAL", 13, ("lives",)),
    "aborted-ranges-forgotten": Case("LOST COPY", 0, ("copying",)),
    "aborted-ones-come-late": Case("ABORTED READ", 0, ("isolation",)),
    "ages-by-the-wall-clock": Case("KEPT", 4, ("clocks", "trimming")),
    "batches-that-come-twice-taken-whole": Case("CURSOR AHEAD", 23, ("mixed acknowledgements",)),
    "begins-within-transactions": Case("PART OF A TRANSACTION", 1, ("beginning at the end",)),
    "clients-drop-nothing": Case("CURSOR AHEAD", 118, ("succession",)),
    "commits-swapped-by-recovery": Case("COMMIT ORDER", 2, ENDS_AT_ONCE),
    "committed-twice-after-a-crash": Case("DUPLICATE", 1, ("commit order",)),
    "compaction-reads-past-max-read-position": Case("NOT IN THE LOG", 6, ("compacting",)),
    "copy-answered-as-duplicate": Case("LOST COPY", 0, ("copying",)),
    "covered-ones-not-checked": Case("ACKNOWLEDGED TWICE", 1, ("lives",)),
    "cumulative-ones-kept-from-successors": Case("CURSOR AHEAD", 1, ("succession",)),
    "decided-one-by-one": Case("HALF TOGETHER", 0, ("committing together",)),
    "damaged-blocks-are-shown": Case("SHOWN", 4, ("damaged disks",)),
    "delayed-comes-early": Case("EARLY", 1, ("delays",)),
    "delayed-written-as-acknowledged": Case("STUCK", 2, ("delays",)),
    "delays-outlive-their-policy": Case("STUCK", 1, ("delays",)),
    "deleted-subscriptions-stay-in-memory": Case("NOT FREED", 0, ("deleted topics",)),
    "deleted-topics-stay-in-memory": Case("NOT FREED", 0, ("deleted topics",)),
    "deletions-gone-before-readers-came": Case("NOT DELETED", 0, ("compacting",)),
    "deletion-overtaken-by-an-unload": Case("UNDELETED", 4, REBIRTH),
    "deletion-without-a-tombstone": Case("UNDELETED", 3, REBIRTH),
    "dropped-past-max-read-position": Case("DROPPED", 12, ("perishing",)),
    "end-before-open-transactions": Case("BEHIND THE END", 3, ("terminating",)),
    "end-believed-from-anybody": Case("STUCK", 9, HOSTILE),
    "entry-skipped-after-redelivery": Case("STUCK", 1),
    "epochs-forgotten-by-an-unload": Case("NEEDLESS REFUSAL", 0, ("lives", "unloads")),
    "epoch-not-checked": Case("FENCED WRITE", 20, ("fencing",)),
    "epoch-not-durable": Case("FENCED WRITE", 0, ("fencing",)),
    "everything-expires": Case("DROPPED", 3, ("perishing",)),
    "evicted-entries-mistaken": Case("STUCK", 1),
    "expired-within-a-visit": Case("KEPT", 37, ("trimming",)),
    "fenced-ones-left-open": Case("FENCED WRITE", 1, ("fencing",)),
    "group-half-decided": Case("HALF TOGETHER", 7, ("groups",)),
    "given-back-forgotten-by-an-unload": Case("CURSOR AHEAD", 3, ("succession", "unloads")),
    "held-before-a-reconnect-forgotten": Case("ACKNOWLEDGED TWICE", 6, ("lives",)),
    "ids-begun-anew-are-copies": Case("LOST COPY", 9, ("switched deduplication",)),
    "impossible-participants": Case("STUCK", 2, HOSTILE),
    "journal-kept-on-a-full-disk": Case("NOT HEALED", 2, FULL_DISK),
    "kafka-acceptances-not-stored": Case("ACCEPTANCE LOST", 1, ("kafka shares",)),
    "kafka-aborted-batches-shown": Case("NOT ONE LOG", 0, ("kafka transactions",)),
    "kafka-ends-of-successors-answered": Case("LOSS", 12, ("kafka transactions",)),
    "kafka-late-ends-end-the-next": Case("LOSS", 1, ("kafka transactions",)),
    "kafka-offsets-lost-at-recovery": Case("PARTIAL TRANSACTION", 0, ("kafka and pulsar",)),
    "kafka-locks-run-out-early": Case("HELD BY TWO", 1, ("kafka shares",)),
    "kafka-old-generations-commit": Case("OLD GENERATION", 2, ("kafka groups",)),
    "kafka-partitions-given-too-early": Case("TWO OWNERS", 0, ("kafka heartbeats",)),
    "kafka-static-members-not-fenced": Case("TWO OWNERS", 0, ("kafka static members",)),
    "kafka-producers-older-than-the-log": Case("DUPLICATE", 5, ("kafka",)),
    "kafka-stable-offset-before-the-marker": Case("UNCONFIRMED READ", 5, ("kafka transactions",)),
    "kafka-windows-not-recovered": Case("DUPLICATE", 1, ("kafka",)),
    "key-given-away-in-flight": Case("KEY ORDER", 59),
    "lives-forgotten-by-an-unload": Case("ACKNOWLEDGED TWICE", 0, ("lives", "unloads")),
    "late-ones-covered-before-they-came": Case("CURSOR AHEAD", 20, ("succession",)),
    "left-out-counts-as-acknowledged": Case("CURSOR AHEAD", 16, ("mixed acknowledgements",)),
    "left-open-and-not-asked-about": Case("PINNED", 6, ("unloads",)),
    "marker-skipped": Case("STILL OPEN", 0),
    "markers-ahead-of-their-decision": Case("ABORTED READ", 9, ("shortages",)),
    "markers-tell-the-time": Case("MOVED WRONGLY", 23, ("clocks", "navigation")),
    "max-read-position-moved-early": Case("UNCONFIRMED READ", 1),
    "metadata-believed-at-recovery": Case("LOSS", 2, HOSTILE),
    "missing-descriptors-end-it": Case("UNHANDLED", 0, ("descriptors",)),
    "newer-session-aborts-prepared-ones": Case("NOT KEPT PREPARED", 9, ("preparing",)),
    "opposite-end-answered": Case("CONTRADICTION", 3),
    "outcome-dropped": Case("STUCK", 350),
    "outcomes-forgotten-at-recovery": Case("FORGOTTEN", 18, ("copying", "unloads")),
    "own-commits-are-rivals": Case("NEEDLESS REFUSAL", 0, ("lives",)),
    "pending-ack-forgotten-at-recovery": Case("ACKNOWLEDGED TWICE", 1),
    "pending-ack-logs-share-a-name": Case("STUCK", 1, ("similar names",)),
    "plain-ones-cover-what-is-held": Case("CURSOR AHEAD", 20, ("succession",)),
    "prepared-ended-to-find-out": Case("NOT KEPT PREPARED", 1, ("preparing",)),
    "prepared-forgotten-at-recovery": Case("NOT KEPT PREPARED", 8, ("preparing",)),
    "processes-not-told-apart": Case("NEEDLESS REFUSAL", 0, ("lives",)),
    "ranges-end-early": Case("STUCK", 0, ("key ranges",)),
    "ranges-ignored": Case("WRONG KEYS", 0, ("key ranges",)),
    "receipt-before-the-fsync": Case("LOSS", 21),
    "received-later-and-named": Case("CONSUMED BY NONE", 310, ("lives",)),
    "resent-never-answered": Case("STUCK", 0, ("returning producers",)),
    "reserve-for-records-only": Case("NOT HEALED", 294, FULL_DISK),
    "reserve-kept-at-a-start": Case("NOT HEALED", 18, FULL_DISK),
    "reserve-not-regained": Case("NO RESERVE", 32, FULL_DISK),
    "rest-of-a-commit-forgotten-by-an-unload": Case(
        "ACKNOWLEDGED TWICE", 12, ("long ends", "unloads")
    ),
    "rollover-turns-the-order": Case("ORDER", 14),
    "seek-keeps-single-acknowledgements": Case("MOVED WRONGLY", 1, ("navigation",)),
    "seek-leaves-old-records": Case("MOVED WRONGLY", 40, ("navigation",)),
    "sequence-ids-forgotten-at-recovery": Case("DUPLICATE", 52),
    "sequence-ids-kept-elsewhere": Case("LOSS", 0, ("older backups",)),
    "side-data-trimmed-early": Case("LOSS", 35, ("commit order",)),
    "snapshot-forgets-cumulative-ones": Case("REDELIVERED AFTER COMMIT", 70, SMALL_AND_UNLOADED),
    "snapshot-forgets-partial-batches": Case("ACKNOWLEDGED TWICE", 65, ("small logs",)),
    "snapshot-outlives-its-topic": Case("SWALLOWED", 1, REBIRTH),
    "spared-forgotten-by-the-log": Case("CURSOR AHEAD", 70, ("succession", "unloads")),
    "termination-not-durable": Case("TAKES MORE", 0, ("terminating",)),
    "timeout-ends-prepared-ones": Case("NOT KEPT PREPARED", 11, ("preparing",)),
    "tombstone-takes-a-live-key": Case("COMPACTED AWAY", 0, ("compacting",)),
    "topics-commit-in-an-order-of-their-own": Case("COMMIT ORDER", 1, ENDS_AT_ONCE),
    "transactions-cover-what-others-hold": Case("CURSOR AHEAD", 1, ("succession",)),
    "trimmed-ones-hold-back": Case("STILL OPEN", 305, ("returning producers", "unloads")),
    "truncation-stops-at-deduplication": Case("KEPT", 4, ("truncating",)),
    "truncation-takes-what-is-open": Case("LOSS", 20, ("truncating",)),
    "uncommitted-reads-stick": Case("STUCK", 6, ("isolation",)),
    "unread-counts-as-unwanted": Case("STUCK", 15, ("slow reads",)),
    "unload-drops-pending-acks": Case("ACKNOWLEDGED TWICE", 12, ("unloads",)),
    "what-comes-meanwhile-expires": Case("DROPPED", 42, ("perishing", "slow reads")),
    "unclear-ones-spared": Case("ACKNOWLEDGED TWICE", 0, ("lives",)),
    "what-others-consumed-consumed-again": Case("ACKNOWLEDGED TWICE", 7, ("succession",)),
    "buckets-handed-over-too-early": Case("KEY ORDER", 0, ("sharing segments",)),
    "children-before-their-parents": Case("KEY ORDER", 0, ("splitting",)),
    "children-without-subscriptions": Case("LOSS", 0, ("splitting",)),
    "commits-lost-with-sealed-parents": Case("LOSS", 1, ("splitting",)),
    "parents-ended-before-the-record": Case("STUCK", 124, ("splitting",)),
    "pruned-before-their-ancestors": Case("KEY ORDER", 6, ("splitting",)),
    "two-layouts-of-one-epoch": Case("TWO LAYOUTS", 0, ("splitting",)),
    "sealed-segments-forget-who-wrote": Case("DOUBLED", 84, ("splitting",)),
}


def test_every_bug_has_a_case():
    assert sorted(CASES) == sorted(BUGS)


def test_every_bug_fits_the_code_as_it_is():
    for bug in BUGS.values():
        with bug():
            pass


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", sorted(CASES))
def test_a_deliberate_bug_is_caught_within_2000_seeds(bug):
    case = CASES[bug]
    with BUGS[bug]():
        seeds = chain((case.hint,), range(WITHIN_SEEDS))
        caught = next((seed for seed in seeds if case.is_caught(seed)), None)
    assert caught is not None
    assert case.violations(caught) == [], "without the bug"
