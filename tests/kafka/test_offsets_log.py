"""A log of committed offsets: what a crash leaves of it, alone and within transactions."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from txn_world import ABORT, COMMIT, StorageToBreak, World, soon
from virtual_loop import run_virtually

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.names import TxnId
from pybroker.kafka.groups.values import StoredGroup, StoredMember
from pybroker.kafka.offsets.log import OffsetsLog
from pybroker.kafka.offsets.records import (
    CommitRecord,
    Committed,
    EndRecord,
    GoneRecord,
    GroupRecord,
    OwnerRecord,
    ProducerRecord,
    Record,
    RemoveRecord,
    TopicPartition,
    decode,
    encode,
)
from pybroker.kafka.offsets.state import OffsetsState, cost_bytes
from pybroker.kafka.transactions.values import Kept, ProducerKey, StoredProducer
from pybroker.transaction.coordinator.ends.participants import TransactionEnd
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId
from pybroker.transaction.txn_status import TxnAction, TxnStatus

LOG = "pulsar/system/persistent/__kafka_offsets-partition-0"
TOPIC = "persistent://pulsar/system/__kafka_offsets-partition-0"
A, B = TopicPartition("a", 0), TopicPartition("b", 1)
MEMBER = StoredMember("m", None, "client", "/127.0.0.1", 10_000, 60_000, b"topics", b"assigned")
PAYER = TransactionalId("alice", "payments")
GROUP = StoredGroup(3, "consumer", "range", "m", (MEMBER,), 12)


class OffsetsWorld(World):
    """Coordinators whose only participants are groups in one offsets log."""

    log: OffsetsLog
    snapshot_records = 1000

    async def start(self) -> "OffsetsWorld":
        self.log = await OffsetsLog.open(
            self.factory, LOG, self.coordinators, self.snapshot_records
        )
        await self.coordinators.recover_all(self)
        return self

    def end_on_subscription(
        self,
        end: TransactionEnd,
        topic: str,
        subscription: str,
        not_later: bool = False,
    ) -> Awaitable[Any] | None:
        assert topic == TOPIC
        return self.log.end(end.txn_id, subscription, end.action, not_later)

    def offset(self, offset: int, metadata: str = "") -> Committed:
        return Committed(offset, -1, metadata, 0, self.log.next_order())

    async def commit(self, group: str, txn_id: TxnId | None = None, **offsets: int) -> None:
        places = {TopicPartition(topic, 0): offset for topic, offset in offsets.items()}
        some = tuple((place, self.offset(offset)) for place, offset in places.items())
        self.log.append(CommitRecord(group, some, txn_id))
        if txn_id is not None:
            self.log.look_after_pending()
        await self.log.durable(group)

    async def begin_in(self, group: str) -> TxnId:
        txn_id = await self.begin()
        coordinator = await self.coordinators.get(txn_id.most)
        await coordinator.add_subscriptions(txn_id, [(TOPIC, group)], None)
        return txn_id

    def offsets(self, group: str = "g") -> dict[str, int]:
        return {place.topic: each.offset for place, each in self.log.state.of(group).items()}


Test = Callable[[OffsetsWorld], Awaitable[None]]


def in_world(test: Test) -> Callable[[], None]:
    async def life() -> None:
        await test(await OffsetsWorld().start())

    def wrapped() -> None:
        run_virtually(life())

    wrapped.__name__ = test.__name__
    return wrapped


RECORDS: list[Record] = [
    CommitRecord(
        "g", ((A, Committed(7, 2, "meta", 1_700_000_000_000, 0)), (B, Committed(-1, -1, "", 0, 1)))
    ),
    CommitRecord("g", ((A, Committed(2**63 - 1, -1, "é", 5, 300)),), TxnId(3, 2**40)),
    EndRecord("g", TxnId(3, 2**40), ABORT),
    RemoveRecord("g", (A, B)),
    GroupRecord("g", GROUP),
    GroupRecord("", StoredGroup(-1, "", "", "", (), 0)),
    GoneRecord("g"),
    OwnerRecord("g", "ada"),
    ProducerRecord(PAYER, StoredProducer(ProducerKey(7, 3), 2, 60_000, TxnId(3, 2**40), True)),
    ProducerRecord(PAYER, StoredProducer(ProducerKey(7, 3), 2, None)),
    ProducerRecord(
        PAYER,
        StoredProducer(ProducerKey(7, 3), 2, 60_000, TxnId(3, 1), kept=Kept(ProducerKey(6, 9), 1)),
    ),
    ProducerRecord(PAYER, None),
]


def test_records_are_read_as_they_were_written() -> None:
    assert decode(encode(RECORDS), "log") == RECORDS


def test_an_entry_that_was_cut_is_reported() -> None:
    entry = encode(RECORDS)
    for cut in range(1, len(entry)):
        with pytest.raises(ManagedLedgerError, match="ends after"):
            decode(entry[:cut], "The offsets log")


def test_an_unknown_record_is_reported() -> None:
    with pytest.raises(ManagedLedgerError, match="a record of kind 99"):
        decode(bytes([1, 1, 99, 0]), "The offsets log")


def test_the_count_follows_every_change() -> None:
    state = OffsetsState()
    one = Committed(1, -1, "", 0, 0)
    state.apply(CommitRecord("g", ((A, one), (B, one))))
    state.apply(CommitRecord("g", ((A, one),), TxnId(0, 1)))
    state.apply(CommitRecord("h", ((A, one),)))
    assert state.count == 4
    state.apply(EndRecord("g", TxnId(0, 1), COMMIT))
    assert state.count == 3
    state.apply(RemoveRecord("g", (A, TopicPartition("z", 0))))
    state.apply(GoneRecord("h"))
    assert (state.count, state.group_ids()) == (1, ["g"])
    state.apply(RemoveRecord("g", (B,)))
    assert (state.count, state.knows("g")) == (0, False)


def test_what_a_user_has_follows_every_change() -> None:
    state = OffsetsState()
    one, size = Committed(1, -1, "", 0, 0), cost_bytes(A, Committed(1, -1, "", 0, 0))
    state.apply(OwnerRecord("g", "ada"))  # there is no such group
    state.apply(CommitRecord("g", ((A, one),)))
    assert not state.owners
    state.apply(OwnerRecord("g", "bob"))
    state.apply(OwnerRecord("g", "ada"))  # the first one stays
    state.apply(CommitRecord("g", ((B, one),), TxnId(0, 1)))
    state.apply(CommitRecord("h", ((A, one),)))
    assert (state.bytes_of_user, state.size_bytes) == ({"bob": 2 * size}, 3 * size)
    copied = OffsetsState()
    for record in [*state.records(), *state.records()]:
        copied.apply(record)
    assert (copied.bytes_of_user, copied.owners) == (state.bytes_of_user, {"g": "bob"})
    state.apply(EndRecord("g", TxnId(0, 1), ABORT))
    assert state.bytes_of_user == {"bob": size}
    state.apply(GoneRecord("g"))
    state.apply(GoneRecord("h"))
    assert (state.owners, state.bytes_of_user, state.size_bytes) == ({}, {}, 0)


@in_world
async def test_an_offset_is_durable_when_it_is_answered(world: OffsetsWorld) -> None:
    world.storage.holding = True
    committing = asyncio.ensure_future(world.commit("g", a=5))
    await soon()
    assert not committing.done()
    assert (await world.crashed()).offsets() == {}
    world.storage.release()
    await committing
    assert (await world.crashed()).offsets() == {"a": 5}


@in_world
async def test_a_question_waits_for_the_commit_that_it_would_show(world: OffsetsWorld) -> None:
    world.storage.holding = True
    world.log.append(CommitRecord("g", ((A, world.offset(5)),)))
    asking = asyncio.ensure_future(world.log.durable("g"))
    await world.log.durable("another group")
    await soon()
    assert not asking.done()
    world.storage.release()
    await asking


@in_world
async def test_offsets_may_go_backwards(world: OffsetsWorld) -> None:
    await world.commit("g", a=5, b=7)
    await world.commit("g", a=2)
    assert (await world.crashed()).offsets() == {"a": 2, "b": 7}


@in_world
async def test_a_deleted_group_stays_deleted(world: OffsetsWorld) -> None:
    await world.commit("g", a=5)
    world.log.append(GroupRecord("g", GROUP))
    world.log.append(GoneRecord("g"))
    await world.log.durable("g")
    again = await world.crashed()
    assert not again.log.state.knows("g")


@in_world
async def test_a_snapshot_replaces_the_past(world: OffsetsWorld) -> None:
    for offset in range(30):
        await world.commit("g", a=offset)
    world.log.append(GroupRecord("g", GROUP))
    txn_id = await world.begin_in("g")
    await world.commit("g", txn_id, b=9)
    await world.log.replace_past()
    again = await world.crashed()
    assert again.offsets() == {"a": 29}
    assert again.log.state.groups == {"g": GROUP}
    assert again.log._log.records_since_snapshot == 3
    await again.end(txn_id, COMMIT)
    assert again.offsets() == {"a": 29, "b": 9}


def test_the_log_is_shortened_by_itself_and_loses_nothing() -> None:
    async def life() -> None:
        world = OffsetsWorld()
        world.snapshot_records = 10
        await world.start()
        for offset in range(200):
            await world.commit(f"g{offset % 3}", a=offset)
        again = await world.crashed()
        assert again.log._log.records_since_snapshot < 40
        assert [again.offsets(f"g{each}") for each in range(3)] == [
            {"a": 198},
            {"a": 199},
            {"a": 197},
        ]

    run_virtually(life())


@in_world
async def test_what_is_committed_during_a_snapshot_is_kept(world: OffsetsWorld) -> None:
    for each in range(20):
        await world.commit(f"g{each}", a=each)
    world.storage.holding = True
    replacing = asyncio.ensure_future(world.log.replace_past())
    for each in range(20):
        world.log.append(CommitRecord(f"g{each}", ((A, world.offset(100 + each)),)))
        await asyncio.sleep(0)
    world.log.append(GoneRecord("g3"))
    world.storage.release()
    await replacing
    await world.log.durable("g3")
    again = await world.crashed()
    assert again.offsets("g7") == {"a": 107}
    assert not again.log.state.knows("g3")


# -- transactions


@in_world
async def test_offsets_in_a_transaction_are_seen_after_its_commit(world: OffsetsWorld) -> None:
    await world.commit("g", a=1)
    txn_id = await world.begin_in("g")
    await world.commit("g", txn_id, a=5)
    assert world.offsets() == {"a": 1}
    assert world.log.state.is_pending("g", A)
    assert not world.log.state.is_pending("g", B)
    await world.end(txn_id, COMMIT)
    assert world.offsets() == {"a": 5}
    assert not world.log.state.is_pending("g", A)
    assert (await world.crashed()).offsets() == {"a": 5}


@in_world
async def test_offsets_in_an_aborted_transaction_are_forgotten(world: OffsetsWorld) -> None:
    await world.commit("g", a=1)
    txn_id = await world.begin_in("g")
    await world.commit("g", txn_id, a=5)
    await world.end(txn_id, ABORT)
    assert world.offsets() == {"a": 1}
    assert (await world.crashed()).offsets() == {"a": 1}


@in_world
async def test_a_later_plain_commit_outlives_the_end_of_a_transaction(world: OffsetsWorld) -> None:
    txn_id = await world.begin_in("g")
    await world.commit("g", txn_id, a=5, b=5)
    await world.commit("g", a=2)
    await world.end(txn_id, COMMIT)
    assert world.offsets() == {"a": 2, "b": 5}
    assert (await world.crashed()).offsets() == {"a": 2, "b": 5}


@in_world
async def test_an_end_that_was_told_already_is_nothing_to_do(world: OffsetsWorld) -> None:
    txn_id = await world.begin_in("g")
    await world.commit("g", txn_id, a=5)
    world.storage.holding = True
    first = world.log.end(txn_id, "g", COMMIT)
    assert first is not None and world.log.end(txn_id, "g", COMMIT) is first
    world.storage.release()
    await first
    assert world.log.end(txn_id, "g", COMMIT) is None


@pytest.mark.parametrize("action", [COMMIT, ABORT])
def test_a_crash_at_any_write_leaves_offsets_as_the_coordinator_decided(action: TxnAction) -> None:
    """Every prefix of what became durable is a crash."""

    async def life() -> None:
        world = await OffsetsWorld().start()
        await world.commit("g", a=1)
        txn_id = await world.begin_in("g")
        begun = len(world.storage._durable)
        await world.commit("g", txn_id, a=5)
        await world.end(txn_id, action)
        await soon()
        seen = set()
        for writes in range(begun, len(world.storage._durable) + 1):
            seen.add(await _after(world, writes, txn_id))
        assert (TxnStatus.OPEN, 1) in seen
        assert ((TxnStatus.COMMITTED, 5) if action is COMMIT else (TxnStatus.ABORTED, 1)) in seen

    run_virtually(life())


async def _after(world: OffsetsWorld, writes: int, txn_id: TxnId) -> tuple[TxnStatus | None, int]:
    storage = StorageToBreak()
    storage._durable = world.storage._durable[:writes]
    copy = storage.durable_copy()
    copy._state.next_ledger_id = world.storage._state.next_ledger_id
    again = await OffsetsWorld(copy).start()
    await asyncio.sleep(30)
    status = again.coordinators.status(txn_id)
    assert again.log.state.has_pending("g") <= (status is TxnStatus.OPEN)
    offset = again.offsets()["a"]
    assert offset == (5 if status is TxnStatus.COMMITTED else 1)
    return status, offset


@in_world
async def test_an_end_that_nobody_told_is_found_out(world: OffsetsWorld) -> None:
    txn_id = await world.begin()  # its coordinator does not know of the group
    await world.commit("g", txn_id, a=5)
    await world.end(txn_id, COMMIT)
    assert world.offsets() == {}
    await asyncio.sleep(10)
    assert world.offsets() == {"a": 5}


@in_world
async def test_a_failed_write_fails_everything_that_waits(world: OffsetsWorld) -> None:
    failures: list[str] = []
    world.log.on_failure = lambda: failures.append("failed")
    world.storage.full = True
    with pytest.raises(ManagedLedgerError):
        await world.commit("g", a=5)
    assert failures == ["failed"]
    with pytest.raises(ManagedLedgerError):
        await world.log.durable("another")
    await world.log.close()
    assert (await world.crashed()).offsets() == {}


@in_world
async def test_an_end_that_is_not_written_fails(world: OffsetsWorld) -> None:
    txn_id = await world.begin_in("g")
    await world.commit("g", txn_id, a=5)
    world.storage.full = True
    told = world.log.end(txn_id, "g", COMMIT)
    assert told is not None
    with pytest.raises(ManagedLedgerError):
        await told
    assert world.offsets() == {}


@in_world
async def test_a_record_without_hurry_is_in_the_log_when_it_is_closed(world: OffsetsWorld) -> None:
    producer = StoredProducer(ProducerKey(7, 3), 2, 60_000)
    world.log.append_without_hurry(ProducerRecord(PAYER, producer))
    assert world.log.state.producers == {PAYER: producer}
    await world.commit("g", a=5)
    again = await world.crashed()
    assert again.log.state.producers == {PAYER: producer}


@in_world
async def test_a_log_that_is_not_closed_cleanly_says_so_unless_it_failed_before(
    world: OffsetsWorld,
) -> None:
    async def fails() -> None:
        raise ManagedLedgerError("the disk is full")

    for failure in (None, ManagedLedgerError("earlier")):
        log = await OffsetsLog.open(world.factory, f"{LOG}-{failure}", world.coordinators)
        log._log.close = fails  # type: ignore[method-assign]
        log.failure = failure
        if failure is None:
            with pytest.raises(ManagedLedgerError):
                await log.close()
        else:
            await log.close()


@in_world
async def test_an_end_that_is_being_written_is_not_found_out_again(world: OffsetsWorld) -> None:
    txn_id = await world.begin()
    await world.commit("g", txn_id, a=5)
    before = world.log._log.records_since_snapshot
    for _ in range(3):
        world.log._settle_as(txn_id, COMMIT)
    await world.log.end(txn_id, "g", COMMIT)  # type: ignore[misc]
    assert world.log._log.records_since_snapshot == before + 1
    assert world.offsets() == {"a": 5}


@in_world
async def test_a_transaction_that_stays_open_for_long_is_found_out_when_it_ends(
    world: OffsetsWorld,
) -> None:
    txn_id = await world.begin()  # its coordinator does not know of the group
    await world.commit("g", txn_id, a=5)
    await asyncio.sleep(40)
    assert world.offsets() == {}
    await world.end(txn_id, COMMIT)
    await asyncio.sleep(20)
    assert world.offsets() == {"a": 5}
