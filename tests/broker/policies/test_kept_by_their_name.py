"""Topics of PySpark's exactly-once queries, which no policy of age takes; under a virtual clock."""

import asyncio

from topics_world import World, run

from managed_ledger.position import EARLIEST
from pybroker.base.names import TopicName
from pybroker.broker.policies.table import BACKLOG_QUOTAS, MESSAGE_TTL, SUBSCRIPTION_EXPIRY

DEFAULT = "public/default"
CONTROL = TopicName.parse("persistent://public/default/__spark-query-7")
DAY_S = 24 * 3600


def quota(kind: str, policy: str, **limits: int) -> dict[str, dict[str, int | str]]:
    return {kind: {"policy": policy, "limitSize": -1, "limitTime": -1, **limits}}


def test_a_message_stays_over_the_ttl_the_quota_of_age_and_the_expiry_of_its_subscription() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic(CONTROL)
        subscription = await topic.subscription("query-7", EARLIEST, {}, create=True)
        producer = await world.producer(topic)
        await world.publish(topic, producer)
        policies = world.topics.policies
        await policies.set_for_namespace(DEFAULT, MESSAGE_TTL, 400)
        await policies.set_for_namespace(DEFAULT, SUBSCRIPTION_EXPIRY, 20)
        old = quota("message_age", "consumer_backlog_eviction", limitTime=100)
        await policies.set_for_namespace(DEFAULT, BACKLOG_QUOTAS, old)
        await world.topics.following.told()
        await asyncio.sleep(DAY_S)
        assert topic.subscriptions == {"query-7": subscription}
        assert subscription.backlog == 1
        old["message_age"]["policy"] = "producer_exception"
        await policies.set_for_namespace(DEFAULT, BACKLOG_QUOTAS, old)
        await world.topics.following.told()
        await asyncio.sleep(DAY_S)
        assert len(topic.producers) == 1, "it was not let go"

    run(scenario)


def test_the_topic_stays_without_a_subscription() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create(CONTROL)
        await asyncio.sleep(DAY_S)
        assert world.exists(CONTROL)

    run(scenario)


def test_the_name_is_no_way_around_a_quota_of_size() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic(CONTROL)
        await topic.subscription("query-7", EARLIEST, {}, create=True)
        await world.publish(topic, await world.producer(topic))
        full = quota("destination_storage", "producer_exception", limitSize=0)
        await world.topics.policies.set_for_namespace(DEFAULT, BACKLOG_QUOTAS, full)
        await world.topics.following.told()
        await asyncio.sleep(61)
        assert len(topic.producers) == 0, "it was let go"

    run(scenario)
