"""Time to live in commit order: a commit puts old messages behind young ones."""

import asyncio

from test_policies_by_time import TXN, publish, set_for_all, subscribed
from topics_world import World, run

from pybroker.broker.policies.table import MESSAGE_TTL
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
