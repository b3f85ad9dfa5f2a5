"""Commit order: a commit puts old messages after newer ones; waiting messages count as backlog."""

import asyncio
from unittest.mock import patch

import pytest
from test_policies_by_time import TXN, publish, quota, set_for_all, subscribed
from topics_world import World, run

from pybroker.base.errors import QuotaExceededException
from pybroker.broker.persistent import publish_time
from pybroker.broker.persistent.publish_time import first_to_read
from pybroker.broker.policies.table import BACKLOG_QUOTAS, MESSAGE_TTL
from pybroker.transaction.txn_status import TxnAction


def test_a_young_message_does_not_expire_with_old_ones_behind_it() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await subscribed(topic)
        topic.buffer.in_commit_order = True
        await publish(topic, *[10] * 8, age_s=1000, txn_id=TXN)
        await publish(topic, 10, age_s=1000)
        young = await publish(topic, 10)
        ending = topic.end_transaction(TXN, TxnAction.COMMIT, -1)
        assert ending is not None
        await ending
        await set_for_all(world, MESSAGE_TTL, 400)
        await asyncio.sleep(301)
        assert subscription.cursor.mark_delete_position == young.before
        await asyncio.sleep(600)
        assert subscription.cursor.mark_delete_position >= young
        assert subscription.backlog == 0

    run(scenario)


def test_what_waits_for_its_commit_fills_a_topic() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        await subscribed(topic)
        topic.buffer.in_commit_order = True
        full = quota("destination_storage", "producer_exception", limitSize=1000)
        await set_for_all(world, BACKLOG_QUOTAS, full)
        topic.buffer.in_commit_order = True
        await world.producer(topic)
        await publish(topic, 600, 600, txn_id=TXN)
        with pytest.raises(QuotaExceededException):
            await world.producer(topic)
        await asyncio.sleep(61)
        assert len(topic.producers) == 0
        assert topic.end_transaction(TXN, TxnAction.ABORT, -1) is None, "over in this turn"
        await world.producer(topic)

    run(scenario)


def test_eviction_makes_room_in_the_log_for_what_waits() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        slow = await subscribed(topic)
        await publish(topic, *[1000] * 20)
        evict = quota("destination_storage", "consumer_backlog_eviction", limitSize=25_000)
        await set_for_all(world, BACKLOG_QUOTAS, evict)
        topic.buffer.in_commit_order = True
        await asyncio.sleep(61)
        assert slow.backlog == 20
        await publish(topic, *[1000] * 10, txn_id=TXN)
        await asyncio.sleep(61)
        assert 10 <= slow.backlog <= 12
        assert topic.buffer.waiting_bytes > 10_000

    run(scenario)


def test_a_seek_by_time_passes_over_nothing_young() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        topic.buffer.in_commit_order = True
        await publish(topic, 10, age_s=2000)
        await publish(topic, *[10] * 8, age_s=1000, txn_id=TXN)
        young = await publish(topic, 10, age_s=500)
        ending = topic.end_transaction(TXN, TxnAction.COMMIT, -1)
        assert ending is not None
        await ending
        await publish(topic, 10)
        now_ms = topic.clock.now_ms()
        assert await first_to_read(topic.ledger, now_ms - 600_000) == young
        assert await first_to_read(topic.ledger, now_ms - 1_500_000) == young
        assert await first_to_read(topic.ledger, 0) == topic.ledger.first_position
        assert await first_to_read(topic.ledger, now_ms + 1) == topic.ledger.last_confirmed.after
        with patch.object(publish_time, "_LOOKED_THROUGH", 1):
            assert await first_to_read(topic.ledger, now_ms - 600_000) <= young

    run(scenario)
