"""Each subscription has its own pending-ack log; logs that several once shared are split."""

import pytest
from txn_world import StorageToBreak, World
from virtual_loop import run_virtually

from managed_ledger.cursor import ManagedCursor
from managed_ledger.position import Position
from pybroker.base.names import TopicName, TxnId, pending_ack_log
from pybroker.transaction.pending_acks.migration import migrate_pending_ack_logs
from pybroker.transaction.pending_acks.records import AckRecord, EndRecord, PendingAck, Record
from pybroker.transaction.pending_acks.store import PendingAckStore
from pybroker.transaction.txn_status import TxnAction

EU, ALL = "persistent://public/default/orders-eu", "persistent://public/default/orders"
SHARED = "public/default/persistent/orders-eu-billing__transaction_pending_ack"
ONE, TWO, THREE = TxnId(0, 1), TxnId(0, 2), TxnId(0, 3)
PAIRS = [(ALL, "eu-billing"), (EU, "billing")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("orders", "eu-billing"), ("orders-eu", "billing")),
        (("orders", "a/b"), ("persistent://public/default/orders/a", "b")),
        (("orders", "a%2Fb"), ("orders", "a/b")),
        (("orders", "s"), ("persistent://public/default-orders/x", "s")),
    ],
)
def test_no_two_subscriptions_share_a_log(one: tuple[str, str], other: tuple[str, str]) -> None:
    logs = {pending_ack_log(TopicName.parse(topic), name) for topic, name in (one, other)}
    assert len(logs) == 2


def test_no_topic_is_named_like_a_log() -> None:
    log = pending_ack_log(TopicName.parse("persistent://pending-acks/public/a"), "persistent/b")
    topic = TopicName.parse("persistent://pending-acks/public/x")
    assert len(log.split("/")) < len(topic.ledger_name.split("/"))


def ack(txn_id: TxnId, *positions: Position, cumulative: bool = False) -> AckRecord:
    return AckRecord(txn_id, cumulative, tuple(map(PendingAck, positions)))


async def old_directory() -> tuple[World, dict[str, list[Position]]]:
    """Two subscriptions whose acknowledgements share one log, as in earlier versions."""
    world = await World().start()
    at = {}
    for topic, name in PAIRS:
        await world.cursor(name, topic)
        first = await world.send(None, *"abcde", topic=topic)
        at[topic] = [Position(first.ledger_id, first.entry_id + number) for number in range(5)]
    await write_old(
        world,
        ack(ONE, at[EU][0]),
        EndRecord(ONE, TxnAction.COMMIT),
        ack(TWO, at[ALL][4], cumulative=True),
        ack(THREE, at[EU][2], at[ALL][0]),
        EndRecord(TWO, TxnAction.COMMIT),
    )
    return world, at


async def nothing() -> None:
    """There are no other logs."""


async def write_old(world: World, *records: Record) -> None:
    old = await PendingAckStore.open_log(world.factory, SHARED)
    await old.replace_past(records, nothing)


async def records_of(world: World, topic: str, name: str) -> list[Record]:
    found: list[Record] = []
    log = pending_ack_log(TopicName.parse(topic), name)
    store = await PendingAckStore.open_log(world.factory, log)
    await store.replay(found.append)
    return found


async def check_split(world: World, at: dict[str, list[Position]]) -> None:
    assert await records_of(world, *PAIRS[0]) == [
        ack(TWO, at[ALL][4], cumulative=True),
        ack(THREE, at[ALL][0]),
        EndRecord(TWO, TxnAction.COMMIT),
    ]
    assert await records_of(world, *PAIRS[1]) == [
        ack(ONE, at[EU][0]),
        EndRecord(ONE, TxnAction.COMMIT),
        ack(THREE, at[EU][2]),
    ]
    assert world.factory.names(suffix="__transaction_pending_ack") == []


def test_each_subscription_takes_its_own_out_of_a_shared_log() -> None:
    async def scenario() -> None:
        world, at = await old_directory()
        await migrate_pending_ack_logs(world.factory)
        await check_split(world, at)

    run_virtually(scenario())


def test_a_migration_that_is_killed_at_any_write_is_done_by_the_next_start() -> None:
    async def scenario() -> None:
        world, at = await old_directory()
        before = len(world.storage._durable)
        await migrate_pending_ack_logs(world.factory)
        writes = len(world.storage._durable)
        assert writes - before > 5
        for count in range(before, writes):
            cut = StorageToBreak()
            cut._durable = world.storage._durable[:count]
            cut._state.next_ledger_id = world.storage._state.next_ledger_id
            after = await World(cut.durable_copy()).start()
            await migrate_pending_ack_logs(after.factory)
            await check_split(after, at)

    run_virtually(scenario())


def test_a_shared_log_commits_for_each_what_was_its_own() -> None:
    async def scenario() -> None:
        world, at = await old_directory()
        await migrate_pending_ack_logs(world.factory)
        cursors: dict[str, ManagedCursor] = {}
        for topic, name in PAIRS:
            await world.acks(name, topic)
            cursors[topic] = await world.cursor(name, topic)
        assert cursors[ALL].mark_delete_position == at[ALL][4]
        assert cursors[EU].mark_delete_position == at[EU][0]

    run_virtually(scenario())


def test_a_subscription_that_is_gone_gets_nothing() -> None:
    async def scenario() -> None:
        world, _ = await old_directory()
        await (await world.ledger(EU)).delete_cursor("billing")
        await migrate_pending_ack_logs(world.factory)
        logs = world.factory.names("pending-acks/")
        assert logs == [pending_ack_log(TopicName.parse(ALL), "eu-billing")]

    run_virtually(scenario())


def test_a_subscription_may_be_called_as_shared_logs_once_ended() -> None:
    """Its log is not a shared one, so what it holds stays."""

    async def scenario() -> None:
        world = await World().start()
        name = "billing__transaction_pending_ack"
        log = pending_ack_log(TopicName.parse(ALL), name)
        assert log.endswith(SHARED[-len("__transaction_pending_ack") :])
        store = await PendingAckStore.open_log(world.factory, log)
        record = ack(ONE, Position(0, 0))
        await store.replace_past([record], nothing)
        await migrate_pending_ack_logs(world.factory)
        assert await records_of(world, ALL, name) == [record]

    run_virtually(scenario())
