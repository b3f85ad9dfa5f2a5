"""A coordinator's log in Apache Pulsar's format: its bytes, and what both brokers find in it.

tests/bookkeeper/test_pulsar_transactions_java.py shows that Apache's own classes read it.
"""

import pytest
from txn_world import ABORT, COMMIT, ORDERS, World
from virtual_loop import run_virtually

from managed_ledger.errors import CorruptStorage
from managed_ledger.position import Position
from managed_ledger.storage.backend import BARE
from pybroker.base.names import TxnId
from pybroker.cluster.transactions.formats import use_pulsars_formats
from pybroker.transaction.coordinator.log.group_records import GroupMembers, Promise
from pybroker.transaction.coordinator.log.pulsar_log import PulsarLog, decode_pulsar
from pybroker.transaction.coordinator.log.records import (
    AddPartitions,
    AddSubscriptions,
    BindSession,
    ChangeStatus,
    IdsUsed,
    NewTransaction,
    Prepare,
    Record,
    SpanNamespace,
)
from pybroker.transaction.coordinator.log.transaction_log import log_name
from pybroker.transaction.coordinator.outcome_window import OutcomeMark
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef, TransactionalId
from pybroker.transaction.txn_status import TxnStatus

RECORDS: list[Record] = [
    NewTransaction(5, 1000, 7, None),
    NewTransaction(6, 1000, 7, "me"),
    AddPartitions(5, ("t", "u")),
    AddSubscriptions(5, (("t", "s"), ("u", "s"))),
    ChangeStatus(5, TxnStatus.COMMITTING, 300),
    ChangeStatus(5, TxnStatus.COMMITTED, 301),
    ChangeStatus(6, TxnStatus.ABORTING, 302, "because"),
    ChangeStatus(6, TxnStatus.ABORTED, 303),
    SpanNamespace(5, "a/b"),
    Promise(5, TxnId(1, 300)),
    Promise(5, None),
    GroupMembers(5, (TxnId(0, 1), TxnId(2, 3))),
    Prepare(5, 300, "db"),
    IdsUsed(6, 4),
    IdsUsed(-1, -1),
    OutcomeMark(300, -1),
    BindSession(5, SessionRef(TransactionalId("me", "orders"), 3)),
]


@pytest.mark.parametrize(
    ("record", "stored"),
    [
        (NewTransaction(5, 1000, 7, "me"), "08001005180240e8074807500762026d655805"),
        (AddPartitions(5, ("t", "u")), "0801100518023201743201755805"),
        (AddSubscriptions(5, (("t", "s"),)), "0802100518023a060a01741201735805"),
        (ChangeStatus(5, TxnStatus.ABORTING, 300), "0803100518022000280350ac025805"),
        (
            ChangeStatus(5, TxnStatus.ABORTED, 300, "no"),
            "0803100518022003280450ac02ca3e08140504ac02026e6f5805",
        ),
        # To Apache's brokers it is OPEN still: they add nothing to it.
        (Prepare(5, 300, "db"), "080110051802ca3e073205ac020264625805"),
        (SpanNamespace(5, "a/b"), "080110051802ca3e061e0503612f625805"),
    ],
)
def test_a_record_is_stored_as_apache_s_fields_and_what_they_lack_in_field_1001(
    record: Record, stored: str
) -> None:
    assert PulsarLog(2).encode([record]).hex() == stored


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_record_is_read_as_it_was_written(record: Record) -> None:
    log = PulsarLog(2)
    assert decode_pulsar(log.encode([record]), "test").records == [record]
    assert decode_pulsar(log.encode([record]), "test").highest_id == log.highest_id


def test_records_of_one_entry_are_a_batch_each_with_the_highest_id_so_far() -> None:
    log = PulsarLog(2)
    entry = log.encode(RECORDS)
    assert entry[:4].hex() == "0e010001"
    assert decode_pulsar(entry, "test").records == RECORDS
    assert decode_pulsar(log.encode([ChangeStatus(2, TxnStatus.COMMITTING, 1)]), "test") == (
        decode_pulsar(bytes.fromhex("0803100218022000280150015806"), "test")
    )


@pytest.mark.parametrize(
    ("stored", "what"),
    [
        ("08071005", "has the operation 7"),
        ("080310052809", "in the unknown state 9"),
        ("080310052800", "becomes OPEN"),
        ("0803", "in the unknown state -1"),
        ("080110053201ff", "not UTF-8"),
        ("080110ffffffffffffffffff01", "the negative number -1"),
        ("080110", "without an end"),
        ("0e0100010aff", "without an end"),
        ("0e01000132", "without an end"),
    ],
)
def test_what_nobody_writes_is_refused(stored: str, what: str) -> None:
    with pytest.raises(CorruptStorage, match=what):
        decode_pulsar(bytes.fromhex(stored), "the log")


class PulsarWorld(World):
    """A world whose coordinators write Apache Pulsar's format."""

    async def start(self) -> "PulsarWorld":
        use_pulsars_formats(self.coordinators)
        return await super().start()


def in_pulsar_world(scenario):
    async def within() -> None:
        world = await PulsarWorld(transaction_metadata_snapshot_entries=50).start()
        await scenario(world)
        await world.stopped()

    def test() -> None:
        run_virtually(within())

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


@in_pulsar_world
async def test_live_and_ended_transactions_are_recovered(world: PulsarWorld) -> None:
    coordinator = await world.coordinators.get(0)
    committed = await coordinator.new_transaction(60_000, None)
    aborted = await coordinator.new_transaction(60_000, None)
    left_open = await coordinator.new_transaction(60_000, "me")
    await coordinator.add_partitions(left_open, [ORDERS], None)
    await coordinator.end(committed, COMMIT, None)
    await coordinator.abort(aborted, "an operator aborted it")
    world = await world.restarted()
    recovered = await world.coordinators.get(0)
    assert recovered.status(committed) is TxnStatus.COMMITTED
    assert recovered.status(aborted) is TxnStatus.ABORTED
    assert recovered.why_aborted(aborted) == "an operator aborted it"
    metadata = recovered.metadata(left_open)
    assert metadata is not None and metadata.owner == "me" and list(metadata.partitions) == [ORDERS]
    assert await recovered.new_transaction(60_000, None) == TxnId(0, 3)


@in_pulsar_world
async def test_a_snapshot_is_in_the_same_format(world: PulsarWorld) -> None:
    coordinator = await world.coordinators.get(0)
    for _ in range(60):
        await coordinator.end(await coordinator.new_transaction(60_000, None), ABORT, None)
    left_open = await coordinator.new_transaction(60_000, None)
    world = await world.restarted()
    log = await world.factory.open(log_name(0))
    assert log.cursors["transaction.subscription"].mark_delete_position > Position(0, 50)
    recovered = await world.coordinators.get(0)
    assert recovered.status(left_open) is TxnStatus.OPEN
    assert recovered.highest_id == 60


@in_pulsar_world
async def test_ids_go_on_behind_a_log_of_apache_s_whose_entries_are_all_deleted(
    world: PulsarWorld,
) -> None:
    """Apache leaves an idle coordinator like this: all entries are acknowledged and trimmable."""
    log = await world.factory.open(log_name(0))
    await log.set_property("max_local_txn_id", "10")
    cursor = await log.open_cursor("transaction.subscription", None)
    apache = PulsarLog(0)
    last = Position(0, 0)
    for record in (NewTransaction(500, 1000, 1, None), ChangeStatus(500, TxnStatus.ABORTING, 2)):
        last = await log.append_one(apache.encode([record]), 1, BARE)
    last = await log.append_one(apache.encode([ChangeStatus(500, TxnStatus.ABORTED, 3)]), 1, BARE)
    cursor.mark_delete(last)
    await cursor.flush()
    world = await world.restarted()
    assert await (await world.coordinators.get(0)).new_transaction(1000, None) == TxnId(0, 501)


@in_pulsar_world
async def test_the_property_knows_the_highest_id_while_the_last_ledger_is_empty(
    world: PulsarWorld,
) -> None:
    coordinator = await world.coordinators.get(0)
    for _ in range(3):
        await coordinator.new_transaction(60_000, None)
    log = await world.factory.open(log_name(0))
    await log.roll_over()
    assert log.properties["max_local_txn_id"] == "2"
    await coordinator.new_transaction(60_000, None)
    world = await world.crashed()
    log = await world.factory.open(log_name(0))
    assert log.properties["max_local_txn_id"] == "3"


@in_pulsar_world
async def test_an_absurd_highest_id_is_not_counted_up_to(world: PulsarWorld) -> None:
    log = await world.factory.open(log_name(0))
    await log.set_property("max_local_txn_id", str(1 << 60))
    world = await world.restarted()
    coordinator = await world.coordinators.get(0)
    assert coordinator.stats().low_watermark == 1 << 60


@in_pulsar_world
async def test_a_property_that_is_no_number_is_named(world: PulsarWorld) -> None:
    log = await world.factory.open(log_name(0))
    await log.set_property("max_local_txn_id", "ten")
    await world.stopped()
    with pytest.raises(CorruptStorage, match="max_local_txn_id is 'ten', not a number"):
        await world.crashed()


def test_a_log_in_one_format_is_read_by_a_broker_that_writes_the_other() -> None:
    async def scenario() -> None:
        world = await World().start()
        coordinator = await world.coordinators.get(0)
        first = await coordinator.new_transaction(60_000, None)
        await world.stopped()
        pulsar = await PulsarWorld(world.storage.durable_copy()).start()
        second = await (await pulsar.coordinators.get(0)).new_transaction(60_000, None)
        await pulsar.stopped()
        world = await World(pulsar.storage.durable_copy()).start()
        recovered = await world.coordinators.get(0)
        assert [each.txn_id for each in recovered.live()] == [first, second]
        assert await recovered.new_transaction(60_000, None) == TxnId(0, 2)
        await world.stopped()

    run_virtually(scenario())
