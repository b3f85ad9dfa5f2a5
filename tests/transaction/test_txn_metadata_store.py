"""Decisions and their records: what is refused, and that replay restores the state in memory."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.base.errors import InvalidTxnStatus, NotAllowed, PulsarError, TransactionNotFound
from pybroker.transaction.coordinator.coordinator_limits import CoordinatorLimits
from pybroker.transaction.coordinator.log.log_records import decode_entry, encode_entry
from pybroker.transaction.coordinator.log.records import NewTransaction, Record
from pybroker.transaction.coordinator.metadata_store import TransactionMetadataStore
from pybroker.transaction.txn_status import ACTION_OF_STATUS, TxnAction, TxnStatus

LIMITS = CoordinatorLimits(
    max_active=6, max_timeout_ms=60_000, outcome_retention_ms=3_600_000, snapshot_entries=100
)


def new_store(limits: CoordinatorLimits = LIMITS) -> TransactionMetadataStore:
    return TransactionMetadataStore(3, limits)


def apply_one(store: TransactionMetadataStore, now_ms: int) -> int:
    """Begins a transaction and commits it."""
    new = store.decide_new(1000, None, now_ms)
    store.apply(new)
    end = store.decide_end(new.local_id, TxnAction.COMMIT, None, now_ms)
    assert end is not None
    store.apply(end)
    store.apply(store.decide_ended(new.local_id, TxnAction.COMMIT, now_ms))
    return new.local_id


def contents(store: TransactionMetadataStore) -> object:
    ids = range(-1, 40)
    live = [
        (t.txn_id, t.status, t.timeout_ms, t.owner, list(t.partitions), list(t.subscriptions))
        for t in sorted(store.live(), key=lambda t: t.txn_id.least)  # a snapshot has another order
    ]
    outcomes = [(store.status(local_id), store.owner_of(local_id)) for local_id in ids]
    prepared = sorted((each.txn_id, each.prepared) for each in store.prepared)
    return live, outcomes, store.low_watermark, prepared


steps = st.lists(
    st.tuples(
        st.sampled_from(["new", "add", "subscribe", "prepare", "commit", "abort", "ended"]),
        st.integers(0, 4),
    ),
    max_size=60,
)


def decide(store: TransactionMetadataStore, step: str, local_id: int, now_ms: int) -> Record | None:
    if step == "new":
        return store.decide_new(1000 + local_id, ["", "é", None][local_id % 3], now_ms)
    if step == "add":
        return store.decide_add_partitions(local_id, [f"t{local_id}", "u"], None)
    if step == "prepare":
        return store.decide_prepare(local_id, "name", None, now_ms)
    if step == "subscribe":
        return store.decide_add_subscriptions(local_id, [("t", f"s{local_id}")], None)
    if step == "ended":
        status = store.status(local_id)
        if status not in (TxnStatus.COMMITTING, TxnStatus.ABORTING):
            return None
        return store.decide_ended(local_id, ACTION_OF_STATUS[status], now_ms)
    return store.decide_end(local_id, TxnAction[step.upper()], None, now_ms)


def live_through(script: list[tuple[str, int]]) -> tuple[TransactionMetadataStore, list[Record]]:
    store, records = new_store(), []
    for now_ms, (step, local_id) in enumerate(script, 1000):
        before = contents(store)
        try:
            record = decide(store, step, local_id, now_ms)
        except PulsarError:
            record = None
        assert contents(store) == before, "a decision changed something"
        if record is not None:
            records.append(record)
            store.apply(record)
    return store, records


@given(steps)
def test_replay_says_what_live_memory_said(script: list[tuple[str, int]]) -> None:
    store, records = live_through(script)
    replayed = new_store()
    for record in decode_entry(encode_entry(records), "test"):
        replayed.apply(record)
    assert contents(replayed) == contents(store)


@given(steps, steps)
def test_a_snapshot_and_what_follows_replace_history(
    before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    store, _ = live_through(before)
    restored = new_store()
    for number, chunk in store.outcomes.take_changes()[0].items():
        restored.outcomes.restore_chunk(number, chunk)
    for record in decode_entry(encode_entry(list(store.snapshot())), "test"):
        restored.apply(record)
    assert contents(restored) == contents(store)
    assert restored.outcomes.marks() == store.outcomes.marks()
    for step, local_id in after:
        for each in (store, restored):
            try:
                record = decide(each, step, local_id, 5000)
            except PulsarError:
                continue
            if record is not None:
                each.apply(record)
        assert contents(restored) == contents(store)


@given(steps, steps)
def test_what_happens_while_a_snapshot_is_taken_is_in_its_pieces_or_in_the_log(
    before: list[tuple[str, int]], meanwhile: list[tuple[str, int]]
) -> None:
    store, _ = live_through(before)
    logged: list[Record] = []
    script = iter(meanwhile)
    for piece in store.snapshot():
        logged.append(piece)
        step, local_id = next(script, ("none", 0))
        try:
            record = decide(store, step, local_id, 5000) if step != "none" else None
        except PulsarError:
            continue
        if record is not None:
            store.apply(record)
            logged.append(record)
    restored = new_store()
    for number, chunk in store.outcomes.take_changes()[0].items():
        restored.outcomes.restore_chunk(number, chunk)
    with restored.replaying():
        for record in decode_entry(encode_entry(logged), "test"):
            restored.apply(record)
    assert contents(restored) == contents(store)


@given(steps, st.data())
def test_a_snapshot_cut_short_changes_nothing(
    script: list[tuple[str, int]], data: st.DataObject
) -> None:
    store, records = live_through(script)
    snapshot = list(store.snapshot())
    replayed = new_store()
    for record in records + snapshot[: data.draw(st.integers(0, len(snapshot)))]:
        replayed.apply(record)
    assert contents(replayed) == contents(store)


@given(steps)
def test_an_outcome_never_changes(script: list[tuple[str, int]]) -> None:
    store = new_store()
    ended: dict[int, TxnStatus] = {}
    for now_ms, (step, local_id) in enumerate(script):
        try:
            record = decide(store, step, local_id, now_ms)
        except (InvalidTxnStatus, TransactionNotFound):
            continue
        except PulsarError:
            continue
        if record is not None:
            store.apply(record)
        for each in range(12):
            status = store.status(each)
            if status in (TxnStatus.COMMITTED, TxnStatus.ABORTED):
                assert ended.setdefault(each, status) is status
    assert all(store.status(each) is status for each, status in ended.items())


def test_a_timeout_is_at_least_one_millisecond_and_at_most_the_limit() -> None:
    store = new_store()
    for allowed in (1, LIMITS.max_timeout_ms):
        assert store.decide_new(allowed, None, 0).timeout_ms == allowed
    for refused in (0, LIMITS.max_timeout_ms + 1):
        with pytest.raises(NotAllowed):
            store.decide_new(refused, None, 0)


def test_an_end_that_is_applied_makes_those_too_old_forgotten() -> None:
    """Replay forgets the same transactions."""
    store = new_store()
    old = apply_one(store, 0)
    apply_one(store, LIMITS.outcome_retention_ms)
    assert store.status(old) is TxnStatus.COMMITTED
    apply_one(store, LIMITS.outcome_retention_ms + 1)
    assert store.status(old) is None


@pytest.mark.parametrize(
    ("live", "entries", "pays"),
    [(0, 99, False), (0, 100, True), (50, 100, True), (51, 101, False), (51, 102, True)],
)
def test_a_snapshot_pays_after_twice_as_many_records_as_it_has_transactions(
    live: int, entries: int, pays: bool
) -> None:
    store = new_store(replace(LIMITS, max_active=100))
    for _ in range(live):
        store.apply(store.decide_new(1000, None, 0))
    assert store.snapshot_pays_after(entries) is pays


def test_a_snapshot_pays_after_as_many_records_as_it_has_participants() -> None:
    store = new_store()
    store.apply(new := store.decide_new(1000, None, 0))
    topics = [f"t-{number}" for number in range(80)]
    for _ in range(2):
        store.apply(store.decide_add_partitions(new.local_id, topics, None))
        pairs = [(topic, "s") for topic in topics]
        store.apply(store.decide_add_subscriptions(new.local_id, pairs, None))
    assert not store.snapshot_pays_after(159)
    assert store.snapshot_pays_after(160)
    store.apply(end := store.decide_end(new.local_id, TxnAction.ABORT, None, 0) or new)
    store.apply(store.decide_ended(end.local_id, TxnAction.ABORT, 0))
    assert store.snapshot_pays_after(100)


def test_participants_beyond_the_limit_are_refused_and_the_others_stay() -> None:
    store = new_store(replace(LIMITS, max_participants=3))
    local_id = store.decide_new(1000, None, 0).local_id
    store.apply(store.decide_new(1000, None, 0))
    store.apply(store.decide_add_partitions(local_id, ["a", "b"], None))
    with pytest.raises(NotAllowed, match=r"2 topics and subscriptions, and may have 3"):
        store.decide_add_subscriptions(local_id, [("a", "s"), ("b", "s")], None)
    store.apply(store.decide_add_subscriptions(local_id, [("a", "s"), ("a", "s")], None))
    store.decide_add_partitions(local_id, ["b", "a"], None)  # both take part already
    with pytest.raises(NotAllowed, match="maxParticipantsPerTransaction"):
        store.decide_add_partitions(local_id, ["c"], None)


def test_a_snapshot_keeps_by_when_outcomes_are_forgotten() -> None:
    store, restored = new_store(), new_store()
    for step in range(4):
        apply_one(store, step * LIMITS.outcome_retention_ms // 4)
    for record in store.snapshot():
        restored.apply(record)
    assert restored.outcomes.marks() == store.outcomes.marks() != []
    assert restored.low_watermark == store.low_watermark == 3
    assert restored.decide_new(1000, None, 0).local_id == 4


def test_while_a_log_is_replayed_nobody_that_may_be_still_to_come_counts_as_ended() -> None:
    """Records logged while a snapshot is written stand between the snapshot's records."""
    store = new_store()
    with store.replaying():
        for local_id in (2, 1, 0):
            store.apply(NewTransaction(local_id, 1000, 0, None))
            assert store.low_watermark == -1
        assert [transaction.txn_id.least for transaction in store.live()] == [2, 1, 0]
    assert [transaction.txn_id.least for transaction in store.live()] == [0, 1, 2]
    assert store.low_watermark == -1
