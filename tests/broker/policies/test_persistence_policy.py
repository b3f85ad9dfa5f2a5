"""How often acknowledgements are written is a policy. Old ledgers are closed even if not full."""

import asyncio

import pytest
from topics_world import ORDERS, World, run

from managed_ledger.ledger_metadata import CursorRecord, cursor_key
from managed_ledger.position import EARLIEST, Position
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.persistence import flush_interval_ms
from pybroker.broker.policies.table import PERSISTENCE

DEFAULT = "public/default"


def stored_mark(world: World, topic: Topic) -> Position:
    key = cursor_key(topic.name.ledger_name, "s")
    stored = world.backend.metadata.get(key)
    assert stored is not None
    return CursorRecord.decode(stored.value, key).mark_delete_position


async def acknowledged(world: World, topic: Topic) -> Position:
    """Publishes a message and acknowledges everything up to it."""
    producer = await world.producer(topic)
    await world.publish(topic, producer)
    await topic.producers.remove(producer)
    topic.subscriptions["s"].cursor.mark_delete(topic.ledger.last_confirmed)
    return topic.ledger.last_confirmed


async def set_rate(world: World, rate: float) -> None:
    value = PERSISTENCE.check({"managedLedgerMaxMarkDeleteRate": rate})
    await world.topics.policies.set_for_namespace(DEFAULT, PERSISTENCE, value)
    await world.topics.following.told()


def test_acknowledgements_are_written_as_often_as_the_policy_says() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        await topic.subscription("s", EARLIEST, {}, create=True)
        for rate, too_early_s, late_enough_s in ((1, 0.9, 1.1), (0.1, 9.9, 10.1), (4, 0.2, 0.26)):
            await set_rate(world, rate)
            at = await acknowledged(world, topic)
            await asyncio.sleep(too_early_s)
            assert stored_mark(world, topic) < at
            await asyncio.sleep(late_enough_s - too_early_s)
            assert stored_mark(world, topic) == at

    run(scenario)


def test_what_waits_to_be_written_waits_as_long_as_the_policy_says_now() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        await topic.subscription("s", EARLIEST, {}, create=True)
        await set_rate(world, 0.02)
        await acknowledged(world, topic)
        await set_rate(world, 4)
        at = await acknowledged(world, topic)
        await asyncio.sleep(0.26)
        assert stored_mark(world, topic) == at
        await set_rate(world, 0.02)
        at = await acknowledged(world, topic)
        await asyncio.sleep(60)
        assert stored_mark(world, topic) == at

    run(scenario)


def test_a_topic_of_another_namespace_keeps_its_own_rate() -> None:
    async def scenario(world: World) -> None:
        await world.tenants.create_namespace("public/other", {})
        here, there = (
            await world.topic(),
            await world.topic(ORDERS.__class__.parse("public/other/a")),
        )
        await set_rate(world, 0.05)
        for topic in (here, there):
            await topic.subscription("s", EARLIEST, {}, create=True)
        late, early = [await acknowledged(world, topic) for topic in (here, there)]
        await asyncio.sleep(1.1)
        assert stored_mark(world, there) == early
        assert stored_mark(world, here) < late
        await asyncio.sleep(19)
        assert stored_mark(world, here) == late

    run(scenario)


def test_what_was_not_written_yet_is_written_when_the_topic_closes() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        await topic.subscription("s", EARLIEST, {}, create=True)
        await set_rate(world, 0.05)
        at = await acknowledged(world, topic)
        await world.topics.unload(ORDERS)
        assert stored_mark(world, topic) == at

    run(scenario)


@pytest.mark.parametrize(
    ("rate", "interval_ms"), [(0, 10), (-1, 10), (1e9, 10), (1, 1000), (0.5, 2000), (1e-9, 60_000)]
)
def test_a_rate_is_an_interval_within_reason(rate: float, interval_ms: int) -> None:
    assert flush_interval_ms(rate) == interval_ms


def test_a_ledger_that_is_old_is_closed_though_it_is_not_full() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        await topic.subscription("s", EARLIEST, {}, create=True)
        await acknowledged(world, topic)
        await asyncio.sleep(4 * 60)
        first = topic.ledger.ledgers()[0].ledger_id
        assert len(topic.ledger.ledgers()) == 1
        await asyncio.sleep(2 * 60)
        assert topic.ledger.ledgers()[-1].ledger_id > first

    run(scenario, managed_ledger_max_ledger_rollover_time_minutes=5)
