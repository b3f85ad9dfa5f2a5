"""Which inactive topics are deleted, and when; under a virtual clock."""

import asyncio
import logging
from typing import Any
from unittest.mock import patch

import pytest
from topics_world import ORDERS, Owner, World, run

from managed_ledger.errors import StorageFull
from managed_ledger.position import EARLIEST
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TopicName, TxnId
from pybroker.base.runtime import Tasks
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.policy import Policy
from pybroker.broker.policies.retention import KeptMessages
from pybroker.broker.policies.table import INACTIVE_TOPICS, RETENTION
from pybroker.broker.subscriptions.consumer import Consumer, SubscribeRequest, SubscriptionType
from pybroker.logs import audit
from pybroker.transaction.txn_status import TxnAction

SNAPSHOTS = TopicName.parse("public/default/__transaction_buffer_snapshot")
LOG = TopicName.parse("persistent://pulsar/system/log")
CAUGHT_UP = "delete_when_subscriptions_caught_up"


def test_a_topic_that_nobody_uses_goes_after_a_minute() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create(ORDERS)
        await asyncio.sleep(59)
        assert world.exists()
        await asyncio.sleep(2)
        assert not world.exists()
        assert world.topics.loaded() == []
        await world.topic()
        assert world.exists(), "the next use creates it anew"

    run(scenario)


def test_a_topic_that_vanishes_is_audited_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World) -> None:
        audit.act_as(audit.Actor("alice", "10.0.0.1:1"))
        await world.topics.create(ORDERS)
        await asyncio.sleep(61)

    with caplog.at_level(logging.INFO, "pybroker.audit"):
        run(scenario)
    said = [(record.getMessage(), record.__dict__["fields"]) for record in caplog.records]
    assert said == [
        (
            "create topic",
            {"who": "alice", "from": "10.0.0.1:1", "on": str(ORDERS), "result": "ok"},
        ),
        (
            "delete topic",
            {
                "who": "the broker",
                "from": "-",
                "on": str(ORDERS),
                "result": "ok",
                "why": "it was unused for 60 s",
            },
        ),
    ]


def test_what_was_granted_on_a_topic_ends_when_it_goes() -> None:
    """A later topic of that name must not inherit the grant."""

    async def scenario(world: World) -> None:
        permissions = world.topics.permissions
        await world.topics.create(ORDERS)
        await permissions.grant_on_topic(ORDERS, "alice", ["consume"])
        await permissions.grant("public/default", "bob", ["produce"])
        await asyncio.sleep(61)
        assert not world.exists()
        granted = permissions.grants("public/default")
        assert (granted.topics, granted.namespace) == ({}, {"bob": ["produce"]})

    run(scenario)


def test_the_minute_begins_when_the_last_producer_has_gone() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        await asyncio.sleep(50)
        producer = await world.producer(topic)
        await asyncio.sleep(1000)
        assert world.exists()
        await topic.producers.remove(producer)
        await asyncio.sleep(59)
        assert world.exists()
        await asyncio.sleep(2)
        assert not world.exists()

    run(scenario)


def test_who_comes_and_goes_begins_it_anew() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        for _ in range(10):
            await asyncio.sleep(50)
            await topic.producers.remove(await world.producer(topic))
        assert world.exists()
        await asyncio.sleep(61)
        assert not world.exists()

    run(scenario)


def test_a_durable_subscription_keeps_its_topic_and_nothing_visits_it() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        await topic.subscription("sub", None, {}, create=True)
        await asyncio.sleep(10_000)
        assert world.exists()
        assert len(world.factory.housekeeper) == 0
        await topic.delete_subscription("sub")
        await asyncio.sleep(61)
        assert not world.exists()

    run(scenario)


def test_a_reader_keeps_its_topic_while_it_is_connected() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        reader = await topic.reader_subscription("reader", None)
        consumer = Consumer(SubscribeRequest(1, "c"), Owner())
        await reader.add_consumer(consumer, SubscriptionType.EXCLUSIVE)
        await asyncio.sleep(1000)
        assert world.exists()
        reader.remove_consumer(consumer)
        await asyncio.sleep(61)
        assert not world.exists()

    run(scenario)


def test_an_open_transaction_keeps_what_it_wrote() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        producer = await world.producer(topic)
        await world.publish(topic, producer, TxnId(0, 1))
        await topic.producers.remove(producer)
        await asyncio.sleep(600)
        assert world.exists()
        await topic.end_transaction(TxnId(0, 1), TxnAction.COMMIT, 0)
        await asyncio.sleep(121)
        assert not world.exists()

    run(scenario)


def test_the_retention_time_keeps_a_topic_though_it_is_inactive() -> None:
    async def scenario(world: World) -> None:
        await world.topic()
        await asyncio.sleep(590)
        assert world.exists()
        await asyncio.sleep(20)
        assert not world.exists()

    run(scenario, default_retention_time_in_minutes=10)


def test_endless_retention_keeps_a_topic() -> None:
    async def scenario(world: World) -> None:
        await world.topic()
        await asyncio.sleep(10_000)
        assert world.exists()

    run(scenario, default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1)


def test_the_maximum_inactive_duration_may_be_longer_than_the_frequency() -> None:
    async def scenario(world: World) -> None:
        await world.topic()
        await asyncio.sleep(299)
        assert world.exists()
        await asyncio.sleep(2)
        assert not world.exists()

    run(scenario, broker_delete_inactive_topics_max_inactive_duration_seconds=300)


def test_system_topics_stay_and_so_do_all_where_it_is_switched_off() -> None:
    async def scenario(world: World) -> None:
        for name in (LOG, SNAPSHOTS):
            await world.topic(name)
        await asyncio.sleep(1000)
        assert world.exists(LOG)
        assert world.exists(SNAPSHOTS)

    async def switched_off(world: World) -> None:
        await world.topic()
        await asyncio.sleep(1000)
        assert world.exists()

    run(scenario)
    run(switched_off, broker_delete_inactive_topics_enabled=False)


@pytest.mark.parametrize("policy", [INACTIVE_TOPICS, RETENTION])
def test_a_topic_stays_that_is_to_be_kept_from_the_moment_on_in_which_it_would_go(
    policy: Policy[Any],
) -> None:
    off = {"deleteWhileInactive": False} if policy is INACTIVE_TOPICS else {}
    kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1} if not off else {}

    async def scenario(world: World) -> None:
        topic, start = await world.topic(), Tasks.start

        def start_and_keep(tasks: Tasks, work: Any, name: str) -> Any:
            if name.startswith("deletion of"):
                value = topic.policies[policy] | off | kept
                topic.policies = Effective(topic.config, ({policy.name: value},))
                KeptMessages().follow(topic)
            return start(tasks, work, name)

        with patch.object(Tasks, "start", start_and_keep):
            await asyncio.sleep(61)
        assert world.exists()

    run(scenario)


def test_a_topic_that_is_not_loaded_stays_until_somebody_loads_it() -> None:
    async def scenario(world: World) -> None:
        await world.topic()
        await world.topics.unload(ORDERS)
        await asyncio.sleep(1000)
        assert world.exists()
        await world.topic()
        await asyncio.sleep(61)
        assert not world.exists()

    run(scenario)


def test_caught_up_subscriptions_go_with_their_topic_where_that_is_the_mode() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        producer = await world.producer(topic)
        subscription = await topic.subscription("sub", EARLIEST, {}, create=True)
        await world.publish(topic, producer)
        await topic.producers.remove(producer)
        await asyncio.sleep(1000)
        assert world.exists(), "somebody has yet to read it"
        await subscription.skip_all()
        await asyncio.sleep(121)
        assert not world.exists()

    run(scenario, broker_delete_inactive_topics_mode=CAUGHT_UP)


@pytest.mark.parametrize("metadata_too", [True, False])
def test_partitions_go_one_by_one_and_the_partitioned_topic_only_if_that_is_wanted(
    metadata_too: bool,
) -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 3)
        first, second = ORDERS.partition_at(0), ORDERS.partition_at(1)
        await world.topic(first)
        kept = await world.topic(second)
        await kept.subscription("sub", None, {}, create=True)
        await asyncio.sleep(121)
        assert not world.exists(first)
        assert world.exists(second)
        assert world.tenants.partitions(ORDERS) == 3
        await kept.delete_subscription("sub")
        await asyncio.sleep(121)
        assert not world.exists(second)
        assert world.tenants.partitions(ORDERS) == (0 if metadata_too else 3)

    run(scenario, broker_delete_inactive_partitioned_topic_metadata_enabled=metadata_too)


def test_who_holds_the_topic_while_it_goes_is_told_to_try_again() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        await asyncio.sleep(60)
        while not topic.closed:  # noqa: ASYNC110 - the moment between the decision and the end
            await asyncio.sleep(0)
        assert world.topics.loaded() == [topic]
        with pytest.raises(ServiceNotReady):
            await topic.subscription("sub", None, {}, create=True)
        with pytest.raises(ServiceNotReady):
            await world.producer(topic)
        again = await world.topic()
        await again.subscription("sub", None, {}, create=True)
        await asyncio.sleep(1000)
        assert world.exists()

    run(scenario)


def test_a_topic_that_cannot_be_deleted_now_can_be_used_and_goes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await world.topic()

        def full(*_: object, **options: object) -> Any:
            refused: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            refused.set_exception(StorageFull("no space left"))
            return refused

        monkeypatch.setattr(world.backend.metadata, "put", full)
        await asyncio.sleep(61)
        monkeypatch.undo()
        assert world.exists()
        topic = await world.topic()
        await world.publish(topic, await world.producer(topic))

    run(scenario)


def test_thousands_go_a_few_at_a_time() -> None:
    async def scenario(world: World) -> None:
        names = [TopicName.parse(f"topic-{number}") for number in range(300)]
        for name in names:
            await world.topic(name)
        await asyncio.sleep(61)
        assert not any(map(world.exists, names))

    run(scenario)


def test_a_message_that_is_never_answered_does_not_hold_up_a_stop(caplog: Any) -> None:
    async def scenario(world: World) -> None:
        topic: Any = await world.topic()
        producer = await world.producer(topic)
        topic.ledger.append = lambda *append: None
        publishing = asyncio.ensure_future(world.publish(topic, producer))
        await asyncio.sleep(0)
        with pytest.raises(ServiceNotReady, match="were not written"):
            await topic.terminate()
        await world.topics.close()
        publishing.cancel()

    run(scenario)
    assert "were not written within" in caplog.text
