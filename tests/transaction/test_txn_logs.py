"""The logs of coordinators and of pending acknowledgements: their bytes, and their replay."""

from unittest.mock import patch

import pytest
from txn_world import COMMIT, COPIES, ORDERS, World, in_world

from managed_ledger.errors import CorruptStorage
from managed_ledger.position import EARLIEST, Position
from pybroker.base.names import TopicName, TxnId, pending_ack_log
from pybroker.transaction.coordinator.log import log_records, transaction_log
from pybroker.transaction.coordinator.log.group_records import GroupMembers, Promise
from pybroker.transaction.coordinator.log.records import (
    AddPartitions,
    AddSubscriptions,
    ChangeStatus,
    IdsUsed,
    NewTransaction,
    Prepare,
    Record,
    SpanNamespace,
)
from pybroker.transaction.coordinator.outcome_window import OutcomeMark
from pybroker.transaction.pending_acks import records, store
from pybroker.transaction.pending_acks.records import (
    HELD_WHOLE,
    AckRecord,
    EndRecord,
    Held,
    LifeRecord,
    PassedOverRecord,
    PendingAck,
)
from pybroker.transaction.txn_status import TxnAction, TxnStatus

ID, AT = TxnId(1, 2), Position(3, 200)


@pytest.mark.parametrize(
    ("record", "stored"),
    [
        (AckRecord(ID, False, (PendingAck(AT),)), "01010001020103c8010000"),
        (AckRecord(ID, False, (PendingAck(AT, 0b01111110, 8),)), "01010001020103c80108017e"),
        (AckRecord(ID, True, (PendingAck(AT, 0b11111110, 8),)), "01010101020103c8010801fe"),
        (AckRecord(ID, True, (PendingAck(AT, 0b111111110, 9),)), "01010101020103c8010902fe01"),
        (EndRecord(ID, TxnAction.COMMIT), "0101020102"),
        (EndRecord(ID, TxnAction.ABORT), "0101030102"),
        (
            AckRecord(ID, True, (PendingAck(AT),), {}, life=3, is_clear=True),
            "01010701020103c80100000301" + "00",
        ),
        (LifeRecord(3, "me", 1, 300), "010106030001ac02026d6500"),
        (LifeRecord(3, "me", 1, 300, plainly=True), "010106030201ac02026d6500"),
        (LifeRecord(3, "me", 1, 300, epoch=-1), "010108030001ac02026d650000"),
        (LifeRecord(3, "me", 1, 300, epoch=299), "010108030001ac02026d6500ac02"),
        (
            LifeRecord(3, "me", 1, 300, epoch=-1, given=(AT, EARLIEST)),
            "010108030401ac02026d65000004c9010000",
        ),
        (
            LifeRecord(3, "me", 1, 300, ((ID, (AT, 5)),), is_gone=True),
            "010106030101ac02026d6501010203c80105",
        ),
        (
            PassedOverRecord({AT: HELD_WHOLE, AT.after: Held(6, 8)}),
            "0101050203c801000003c901080106",
        ),
    ],
)
def test_a_pending_acknowledgement_is_stored_as_it_always_was(
    record: records.Record, stored: str
) -> None:
    assert store.encode_entry([record]).hex() == stored
    assert store.decode_entry(bytes.fromhex(stored), "test") == [record]


def test_a_pending_acknowledgement_of_a_kind_that_a_later_version_wrote_is_refused() -> None:
    with pytest.raises(CorruptStorage, match=r"of kind 9, .* run the version that wrote it"):
        store.decode_entry(bytes.fromhex("01010900"), "The log")


@pytest.mark.parametrize(
    ("record", "stored"),
    [
        (NewTransaction(5, 1000, 7, None), "01010005e807070000"),
        (NewTransaction(5, 1000, 7, "me"), "01010005e8070701026d65"),
        (AddPartitions(5, ("t", "u")), "010101050201740175"),
        (AddSubscriptions(5, (("t", "s"),)), "010102050101740173"),
        (ChangeStatus(5, TxnStatus.ABORTING, 300), "0101030503ac02"),
        (ChangeStatus(5, TxnStatus.ABORTING, 300, "no"), "0201140503ac02026e6f"),
        (SpanNamespace(5, "a/b"), "02011e0503612f62"),
        (Promise(5, TxnId(1, 300)), "02011f0502ac02"),
        (Promise(5, None), "02011f050000"),
        (GroupMembers(5, (TxnId(0, 1), TxnId(2, 3))), "020120050200010203"),
        (Prepare(5, 300, "db"), "02013205ac02026462"),
        (IdsUsed(-1, -1), "0101040000"),
        (OutcomeMark(300, -1), "010105ac0200"),
    ],
)
def test_a_coordinator_s_record_is_stored_as_it_always_was(record: Record, stored: str) -> None:
    assert log_records.encode_entry([record]).hex() == stored
    assert log_records.decode_entry(bytes.fromhex(stored), "test") == [record]


def test_a_coordinator_s_record_of_a_kind_that_a_later_version_wrote_is_refused() -> None:
    with pytest.raises(CorruptStorage, match=r"of kind 99, .* run the version that wrote it"):
        log_records.decode_entry(bytes.fromhex("01016300"), "The log")


LOGS = {
    "coordinator": transaction_log.log_name(0),
    "subscription": pending_ack_log(TopicName.parse(ORDERS), "sub"),
}


async def used(world: World) -> None:
    """Writes records to both logs: begin and subscribe, acknowledge."""
    await world.cursor("sub")
    position = await world.send(None, "a")
    txn_id = await world.begin_acking()
    await (await world.acks()).acknowledge(txn_id, [PendingAck(position)])


@in_world
async def test_what_is_read_again_counts_for_the_next_snapshot(world: World) -> None:
    await used(world)
    world = await world.crashed()
    assert (await world.coordinators.get(0))._log.records_since_snapshot == 2
    assert (await world.acks())._store.records_since_snapshot == 1
    await world.end(TxnId(0, 0), COMMIT)
    assert (await world.coordinators.get(0))._log.records_since_snapshot == 4
    assert (await world.acks())._store.records_since_snapshot == 2


@pytest.mark.parametrize("log", LOGS)
def test_who_cannot_read_a_log_says_which(log: str) -> None:
    @in_world
    async def life(world: World) -> None:
        await used(world)
        ledger = await world.factory.open(LOGS[log])
        await ledger.append_one(b"\x63")
        with pytest.raises(CorruptStorage, match=LOGS[log]):
            await (await world.crashed()).acks()

    life()


@in_world
async def test_a_snapshot_has_what_each_transaction_touches_and_drops_outcomes_that_are_old(
    world: World,
) -> None:
    txn_id = await world.begin_on(ORDERS, COPIES)
    for name in ("sub", "other"):
        await world.add_subscription(txn_id, name)
    coordinator = await world.coordinators.get(0)
    outcomes = coordinator._store.outcomes
    for changes, chunks in [(({3: b"packed"}, []), 1), (({}, [3]), 0)]:
        with patch.object(outcomes, "take_changes", lambda changes=changes: changes):
            await coordinator._log.snapshot(coordinator._store)
        assert len(world.storage.metadata.keys("transaction-outcomes/0/")) == chunks
    before = coordinator.metadata(txn_id)
    again = (await (await world.crashed()).coordinators.get(0)).metadata(txn_id)
    assert before is not None and again is not None
    assert list(again.partitions) == [ORDERS, COPIES]
    assert list(again.subscriptions) == list(before.subscriptions)
    assert len(again.subscriptions) == 2
