"""The demo's verdict depends on the observer and the crash plan: they must notice errors."""

import json
from types import SimpleNamespace

import pytest

from pybroker.base.names import TxnId
from pybroker.demo.crashes import CrashPlan, CrashPoint
from pybroker.demo.observer import Input, Observer
from pybroker.demo.payments import CREDITS, DEBITS, REJECTS, Transfer, make_transfers
from pybroker.spark import Marker
from pybroker.spark.offsets import CursorName, Position, Span

PARTITION = "persistent://public/default/transfers-partition-0"
CURSOR = CursorName(PARTITION, "exactly-once")
TRANSFERS = [
    Transfer(1, "a", "b", 10, 0),
    Transfer(2, "a", "b", 0, 0),  # bad
    Transfer(3, "b", "c", 20, 0),
    Transfer(4, "c", "a", 30, 0),
]
BEGINNING = Position(0, -1)
GOOD = [1, 3, 4]


class Recorded:
    """A topic whose messages are the given ids."""

    def __init__(self, ids):
        self.ids = ids

    def read(self, timeout_ms):
        ids, self.ids = self.ids, []
        return [SimpleNamespace(data=lambda n=n: json.dumps({"id": n})) for n in ids]


@pytest.fixture
def observe(monkeypatch):
    """Runs the observer over one marker for all transfers; returns the observer."""
    monkeypatch.setattr("pybroker.demo.observer._BATCH_TIMEOUT_S", 0.0)

    def run(debits=GOOD, credits=GOOD, rejects=(2,), after=BEGINNING):
        positions = [Position(0, index) for index in range(len(TRANSFERS))]
        observer = Observer("pulsar://nowhere", {PARTITION: Input(positions, TRANSFERS)})
        topics = {DEBITS: debits, CREDITS: credits, REJECTS: rejects}
        observer._tails = {topic: Recorded(list(ids)) for topic, ids in topics.items()}
        for topic, tail in observer._tails.items():
            observer._unread[topic].extend(json.loads(m.data())["id"] for m in tail.read(0))
        progress = {CURSOR: Span(after, Position(0, 3))}
        observer._check(Marker("query", 0, TxnId(0, 0), progress))
        observer._finish.set()
        return observer

    return run


def test_whole_batches_are_no_violation(observe):
    observer = observe()
    assert observer.violations == []
    assert observer.transfers_seen == 4


@pytest.mark.parametrize(
    "seen",
    [
        {"debits": [1, 3]},  # a part of the batch
        {"credits": [1, 3, 3]},  # a duplicate in place of another
        {"debits": [1, 3, 99]},  # an unknown id
        {"rejects": []},
    ],
)
def test_a_partial_repeated_or_foreign_batch_is_a_violation(observe, seen):
    assert len(observe(**seen).violations) == 1


def test_a_marker_that_leaves_transfers_out_is_a_violation(observe):
    violations = observe(debits=[3, 4], credits=[3, 4], rejects=(), after=Position(0, 1)).violations
    assert ["2 transfers away" in violation for violation in violations] == [True]


def test_one_in_twenty_transfers_is_bad():
    transfers = list(make_transfers(10_000, seed=1))
    bad = sum(not transfer.is_good for transfer in transfers)
    assert 400 < bad < 650
    assert len({transfer.id for transfer in transfers}) == 10_000


def test_a_crash_point_names_victim_label_and_occurrence():
    assert CrashPoint.parse(" driver@published:3") == CrashPoint("driver", "published", 3)
    assert CrashPoint.parse("broker@marked") == CrashPoint("broker", "marked", 1)


def test_a_crash_happens_at_its_occurrence_only(tmp_path, monkeypatch):
    killed = []
    monkeypatch.setattr("os.kill", lambda pid, how: killed.append(pid))
    (tmp_path / "pid").write_text("4711")
    plan = CrashPlan("broker@marked:2", tmp_path / "pid", tmp_path / "hold")
    for label in ("marked", "published", "marked", "marked"):
        plan.reach(label)
        assert killed == ([4711] if plan._reached["marked"] >= 2 else [])
