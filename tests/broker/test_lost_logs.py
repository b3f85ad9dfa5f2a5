"""A topic is reloaded after one of its logs was fenced."""

import asyncio

import pytest
from topics_world import ORDERS, run

from managed_ledger.errors import LedgerClosed
from pybroker.base.names import (
    HEALTH_LOG,
    TopicName,
    compacted_log,
    foreign_pending_ack_log,
    pending_ack_log,
    side_log,
    topic_of_log,
)
from pybroker.broker.persistent.lost_logs import LostLogs

LOGS = [
    ORDERS.ledger_name,
    pending_ack_log(ORDERS, "a/b"),
    side_log(ORDERS.ledger_name),
    compacted_log(ORDERS, 3),
]


@pytest.mark.parametrize("name", LOGS)
def test_a_topic_is_loaded_anew_after_one_of_its_logs_was_fenced(name, caplog):
    async def scenario(world):
        lost = LostLogs(world.topics)
        world.factory.on_fenced = lost.lost
        topic = await world.topic()
        log = await world.factory.open(name)
        log._fence(LedgerClosed("another client recovers it"))
        log._fence(LedgerClosed("which is told twice"))
        await asyncio.wait(lost._tasks._tasks)
        assert world.topics.loaded() == []
        anew = await world.topic()
        assert anew is not topic
        assert not anew.ledger.closed
        assert not (await world.factory.open(name)).closed
        producer = await world.producer(anew)
        await world.publish(anew, producer)
        await lost.close()

    run(scenario)
    warnings = [each.message for each in caplog.records if each.name.endswith("lost_logs")]
    assert warnings == [f"{ORDERS} is closed, because one of its logs was fenced"]


def test_which_topic_a_log_belongs_to():
    assert {topic_of_log(name) for name in LOGS} == {ORDERS}
    assert topic_of_log(HEALTH_LOG) is None
    for odd in ("pending-acks", "compacted", "transactions-aside"):
        topic = TopicName("persistent", odd, "namespace", "topic")
        assert topic_of_log(topic.ledger_name) == topic
    foreign = foreign_pending_ack_log(ORDERS, "s")
    assert topic_of_log(foreign) == TopicName.of_ledger(foreign)  # no topic of that name is loaded


def test_what_is_fenced_after_the_broker_has_closed_begins_nothing():
    async def scenario(world):
        lost = LostLogs(world.topics)
        await world.topic()
        await lost.close()
        lost.lost(ORDERS.ledger_name)
        assert not len(lost._tasks)
        assert len(world.topics.loaded()) == 1

    run(scenario)
