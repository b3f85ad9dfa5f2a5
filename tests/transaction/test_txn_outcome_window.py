"""Outcomes are kept for the promised time, then dropped in chunks; deadlines are in buckets."""

import math
import zlib
from functools import partial

import pytest

from pybroker.transaction.coordinator.ends.timeout_tracker import TimeoutTracker
from pybroker.transaction.coordinator.outcome_window import CHUNK_IDS, OutcomeMark, OutcomeWindow
from pybroker.transaction.txn_status import TxnStatus

HOUR_MS = 3_600_000


def test_an_outcome_is_kept_for_the_whole_retention() -> None:
    window = OutcomeWindow(HOUR_MS)
    for minute in range(600):
        local_id = minute * 1000
        window.record(local_id, TxnStatus.COMMITTED)
        window.passed(minute * 60_000, local_id)
        oldest_promised = max(0, minute - 60) * 1000
        assert window.get(oldest_promised) is TxnStatus.COMMITTED
    assert window.get(0) is None
    assert len(window._chunks) < 10


def test_an_outcome_goes_as_soon_as_the_retention_is_over() -> None:
    window = OutcomeWindow(HOUR_MS)
    window.record(1, TxnStatus.COMMITTED)
    for at_ms in (0, HOUR_MS - 10, HOUR_MS):
        window.passed(at_ms, 1)
        assert window.get(1) is TxnStatus.COMMITTED
    window.passed(HOUR_MS + 1, 1)
    assert window.get(1) is None


def test_there_are_eight_marks_in_the_time_of_retention() -> None:
    window = OutcomeWindow(HOUR_MS)
    for step in range(64):
        window.passed(step * HOUR_MS // 32, step)
    assert [mark.watermark for mark in window.marks()] == [32, 36, 40, 44, 48, 52, 56, 60]


def test_a_mark_that_comes_again_counts_once_and_tells_the_time() -> None:
    window = OutcomeWindow(HOUR_MS)
    assert window.latest_ms == 0
    mark = OutcomeMark(7000, 3)
    for _ in range(2):
        window.restore_mark(mark)
    assert (window.marks(), window.latest_ms) == ([mark], 7000)


@pytest.mark.parametrize("ended", [CHUNK_IDS - 2, CHUNK_IDS - 1, CHUNK_IDS])
def test_the_transaction_behind_a_mark_is_not_forgotten_with_those_before_it(ended: int) -> None:
    window = OutcomeWindow(HOUR_MS)
    window.passed(0, ended)
    for local_id in (ended - 1, ended, ended + 1):
        window.record(local_id, TxnStatus.ABORTED)
    window.take_changes()
    window.passed(HOUR_MS + 1, ended + 1)
    assert [window.get(ended - 1), window.get(ended)] == [None, None]
    assert window.get(ended + 1) is TxnStatus.ABORTED
    changed, expired = window.take_changes()
    assert expired == ([0] if ended >= CHUNK_IDS - 1 else [])
    assert sorted(changed) == {CHUNK_IDS - 2: [0], CHUNK_IDS - 1: [], CHUNK_IDS: [1]}[ended]
    assert window.take_changes() == ({}, [])


def test_a_live_transaction_keeps_the_chunks_behind_it() -> None:
    window = OutcomeWindow(HOUR_MS)
    window.record(5, TxnStatus.ABORTED)
    for hour in range(10):
        window.passed(hour * HOUR_MS, 4)  # 5 has ended; an older transaction has not
    assert window.get(5) is TxnStatus.ABORTED


def test_only_changed_chunks_are_written() -> None:
    window = OutcomeWindow(HOUR_MS)
    window.record(0, TxnStatus.COMMITTED)
    window.record(CHUNK_IDS, TxnStatus.ABORTED)
    changed, _ = window.take_changes()
    assert sorted(changed) == [0, 1]
    window.record(CHUNK_IDS + 1, TxnStatus.ABORTED)
    changed, _ = window.take_changes()
    assert sorted(changed) == [1]
    restored = OutcomeWindow(HOUR_MS)
    restored.restore_chunk(1, changed[1])
    assert restored.get(CHUNK_IDS) is restored.get(CHUNK_IDS + 1) is TxnStatus.ABORTED
    assert restored.get(CHUNK_IDS + 2) is None


def test_expired_chunks_are_named_for_deletion() -> None:
    window = OutcomeWindow(HOUR_MS)
    window.record(1, TxnStatus.COMMITTED)
    window.passed(0, CHUNK_IDS)
    window.passed(HOUR_MS + 1, CHUNK_IDS + 1)
    assert window.take_changes() == ({}, [0])


def test_without_retention_nothing_is_remembered() -> None:
    window = OutcomeWindow(0)
    window.record(1, TxnStatus.COMMITTED)
    window.passed(5, 1)
    assert window.get(1) is None
    kept_before = OutcomeWindow(HOUR_MS)
    kept_before.record(1, TxnStatus.COMMITTED)
    window.restore_chunk(0, kept_before.take_changes()[0][0])
    assert window.get(1) is None
    assert window.take_changes() == ({}, [0])


def test_of_a_chunk_in_use_the_beginning_is_forgotten() -> None:
    window = OutcomeWindow(HOUR_MS)
    window.record(1, TxnStatus.COMMITTED)
    window.passed(0, 1)
    window.record(2, TxnStatus.ABORTED)
    window.passed(HOUR_MS + 1, 2)
    assert window.get(1) is None
    assert window.get(2) is TxnStatus.ABORTED
    assert sorted(window.take_changes()[0]) == [0]


def expired(tracker: TimeoutTracker, now_s: float) -> list[int]:
    return list(iter(partial(tracker.pop_expired, now_s), None))


def test_deadlines_come_in_order_and_once() -> None:
    tracker = TimeoutTracker()
    tracker.add(1, 20.0)
    tracker.add(2, 10.0)
    tracker.add(3, 10.02)
    assert tracker.next_deadline_s == 10.0
    assert expired(tracker, 9.9) == []
    assert expired(tracker, 15) == [2, 3]
    assert expired(tracker, 25) == [1]
    assert tracker.next_deadline_s == math.inf


def test_no_transaction_is_aborted_before_the_deadline() -> None:
    tracker = TimeoutTracker()
    tracker.add(1, 10.01)
    assert expired(tracker, 10.009) == []
    assert expired(tracker, 10.1) == [1]


def test_a_removed_deadline_leaves_nothing_behind() -> None:
    tracker = TimeoutTracker()
    for local_id in range(1000):
        tracker.add(local_id, 900.0)
        tracker.remove(local_id)
        tracker.remove(local_id)
    assert len(tracker) == 0 and len(tracker._order) <= 1000
    assert expired(tracker, 1000) == []


def test_transactions_that_end_long_before_their_deadline_leave_nothing_behind() -> None:
    """Like a sink that asks for hours, and commits each second."""
    tracker = TimeoutTracker()
    tracker.add(-1, 50_000.0)
    for local_id in range(20_000):
        tracker.add(local_id, 10_000.0 + local_id)
        tracker.remove(local_id)
    assert len(tracker._buckets) == 1
    assert len(tracker._order) <= 2000
    assert expired(tracker, 49_999) == []
    assert expired(tracker, 50_000) == [-1]


def test_a_deadline_that_is_taken_up_again_comes_once() -> None:
    tracker = TimeoutTracker()
    for _ in range(3):
        tracker.add(1, 10.0)
        tracker.remove(1)
    tracker.add(1, 10.0)
    assert tracker.next_deadline_s == 10.0
    assert expired(tracker, 10) == [1]
    assert expired(tracker, 20) == []
    assert tracker.next_deadline_s == math.inf


def test_owners_are_kept_and_written_with_the_outcomes() -> None:
    window = OutcomeWindow(HOUR_MS)
    owners = {0: "alice", 1: None, 2: "bob", 3: "alice", CHUNK_IDS: 'ü"\0', CHUNK_IDS + 1: None}
    for local_id, owner in owners.items():
        window.record(local_id, TxnStatus.COMMITTED, owner)
    window.record(2, TxnStatus.COMMITTED)  # by a record that does not know it
    restored = OutcomeWindow(HOUR_MS)
    for number, packed in window.take_changes()[0].items():
        restored.restore_chunk(number, packed)
        assert zlib.decompress(packed)[:4] in (b"\x02" * 4, b"\x02\x02\0\0")  # as in old versions
    restored.record(3, TxnStatus.COMMITTED, "bob")
    for each, third in ((window, "alice"), (restored, "bob")):
        found = {local_id: each.owner_of(local_id) for local_id in owners}
        assert found == owners | {3: third}
        assert {each.get(local_id) for local_id in owners} == {TxnStatus.COMMITTED}


def test_outcomes_that_an_older_version_wrote_have_no_owners() -> None:
    window = OutcomeWindow(HOUR_MS)
    window.restore_chunk(0, zlib.compress(b"\x02" + bytes(CHUNK_IDS - 1)))
    assert (window.get(0), window.owner_of(0)) == (TxnStatus.COMMITTED, None)


def test_owners_go_with_the_outcomes() -> None:
    window = OutcomeWindow(HOUR_MS)
    window.record(0, TxnStatus.COMMITTED, "alice")
    window.passed(0, CHUNK_IDS)
    window.passed(HOUR_MS + 1, CHUNK_IDS)
    assert (window.get(0), window.owner_of(0)) == (None, None)
