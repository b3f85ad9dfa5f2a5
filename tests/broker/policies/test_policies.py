"""Policies: topic over namespace over broker. They survive restarts, and their actors are told."""

import asyncio
import json

import pytest
from topics_world import ORDERS, World, run

from managed_ledger.storage.memory import MemoryBackend
from managed_ledger.trim import Retention
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import TopicNotFound
from pybroker.base.names import TopicName
from pybroker.broker.namespaces.tenants import Conflict, NotFound, Tenants
from pybroker.broker.policies import table
from pybroker.broker.policies.policies import Policies, topic_key
from pybroker.broker.policies.policy import Policy
from pybroker.broker.policies.table import (
    AUTO_TOPIC_CREATION,
    BACKLOG_QUOTAS,
    DEDUPLICATION,
    MAX_PRODUCERS,
    MESSAGE_TTL,
    RETENTION,
)

DEFAULT = "public/default"
PARTED = TopicName.parse("parted")


def test_a_topic_counts_before_its_namespace_and_that_before_the_broker() -> None:
    async def scenario(world: World) -> None:
        policies = world.topics.policies
        await world.topic()
        assert policies.of(ORDERS)[MESSAGE_TTL] == 30
        await policies.set_for_namespace(DEFAULT, MESSAGE_TTL, 20)
        assert policies.of(ORDERS)[MESSAGE_TTL] == 20
        await policies.set_for_topic(ORDERS, MESSAGE_TTL, 15, everywhere=True)
        assert policies.of(ORDERS)[MESSAGE_TTL] == 15
        await policies.set_for_topic(ORDERS, MESSAGE_TTL, 10)
        assert policies.of(ORDERS)[MESSAGE_TTL] == 10
        await policies.set_for_topic(ORDERS, MESSAGE_TTL, None)
        await policies.set_for_topic(ORDERS, MESSAGE_TTL, None, everywhere=True)
        await policies.set_for_namespace(DEFAULT, MESSAGE_TTL, None)
        assert policies.of(ORDERS)[MESSAGE_TTL] == 30

    run(scenario, ttl_duration_default_in_seconds=30)


def test_nothing_set_is_not_zero_set() -> None:
    async def scenario(world: World) -> None:
        policies = world.topics.policies
        await world.topic()
        await policies.set_for_namespace(DEFAULT, MAX_PRODUCERS, 0)
        assert policies.of(ORDERS)[MAX_PRODUCERS] == 0
        assert policies.set_of_namespace(DEFAULT, MAX_PRODUCERS) == 0
        assert policies.set_of_topic(ORDERS, MAX_PRODUCERS) is None

    run(scenario, max_producers_per_topic=5)


def test_backlog_quotas_of_both_kinds_come_from_different_levels() -> None:
    async def scenario(world: World) -> None:
        policies = world.topics.policies
        await world.topic()
        hold = {"limitSize": 1, "policy": "producer_request_hold"}
        evict = {"limitTime": 2, "policy": "consumer_backlog_eviction"}
        await policies.set_for_namespace(DEFAULT, BACKLOG_QUOTAS, {"destination_storage": hold})
        await policies.set_for_topic(ORDERS, BACKLOG_QUOTAS, {"message_age": evict})
        found = policies.of(ORDERS)[BACKLOG_QUOTAS]
        assert found["destination_storage"]["limitSize"] == 1
        assert found["message_age"]["limitTime"] == 2

    run(scenario)


def test_partitions_have_the_policies_of_the_whole() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(PARTED, 2)
        first = await world.topic(PARTED.partition_at(0))
        await world.topics.policies.set_for_topic(PARTED.partition_at(1), MESSAGE_TTL, 7)
        await world.topics.following.told()
        assert first.policies[MESSAGE_TTL] == 7
        second = await world.topic(PARTED.partition_at(1))
        assert second.policies[MESSAGE_TTL] == 7

    run(scenario)


def test_topics_without_policies_of_their_own_share_what_holds() -> None:
    async def scenario(world: World) -> None:
        one, other = await world.topic(), await world.topic(TopicName.parse("other"))
        assert one.policies is other.policies
        await world.topics.policies.set_for_namespace(DEFAULT, MESSAGE_TTL, 7)
        await world.topics.following.told()
        assert one.policies is other.policies
        assert one.policies[MESSAGE_TTL] == 7

    run(scenario)


def test_a_change_takes_effect_on_loaded_topics() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        retention = {"retentionTimeInMinutes": 2, "retentionSizeInMB": 3}
        await world.topics.policies.set_for_namespace(DEFAULT, RETENTION, retention)
        await world.topics.following.told()
        assert topic.ledger.config.retention == Retention(120_000, 3 * 1024**2)
        await world.topics.policies.set_for_topic(
            ORDERS, RETENTION, {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        )
        await world.topics.following.told()
        assert topic.ledger.config.retention == Retention(-1, -1)

    run(scenario)


def test_a_change_of_deduplication_loads_the_topic_anew_and_another_change_does_not() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        await world.topics.policies.set_for_topic(ORDERS, MESSAGE_TTL, 7)
        await world.topics.following.told()
        assert await world.topic() is topic
        await world.topics.policies.set_for_topic(ORDERS, DEDUPLICATION, True)
        await world.topics.following.told()
        assert topic.closed
        assert (await world.topic()).deduplication is not None

    run(scenario)


def test_a_topic_s_policies_go_with_it_and_not_with_a_partition() -> None:
    async def scenario(world: World) -> None:
        metadata = world.backend.metadata
        await world.topic()
        await world.topics.create_partitioned(PARTED, 2)
        await world.topic(PARTED.partition_at(0))
        for name in (ORDERS, PARTED):
            await world.topics.policies.set_for_topic(name, MESSAGE_TTL, 7)
        await world.topics.delete(PARTED.partition_at(0))
        assert metadata.get(topic_key(PARTED)) is not None
        await world.topics.delete_partitioned(PARTED)
        await world.topics.delete(ORDERS)
        assert metadata.get(topic_key(PARTED)) is metadata.get(topic_key(ORDERS)) is None

    run(scenario)


def test_nothing_is_set_for_what_does_not_exist() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(TopicNotFound):
            await world.topics.policies.set_for_topic(ORDERS, MESSAGE_TTL, 7)
        with pytest.raises(NotFound):
            await world.topics.policies.set_for_namespace("public/none", MESSAGE_TTL, 7)

    run(scenario)


def test_a_namespace_that_goes_while_its_policy_is_set_does_not_come_back() -> None:
    async def scenario(world: World) -> None:
        await world.tenants.create_namespace("public/going", {})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(world.tenants.delete_namespace("public/going"))
            late = world.topics.policies.set_for_namespace("public/going", MESSAGE_TTL, 7)
            with pytest.raises((Conflict, NotFound)):
                await asyncio.sleep(0)
                await late
        assert not world.tenants.has_namespace("public/going")

    run(scenario)


def test_two_changes_at_once_are_both_kept() -> None:
    async def scenario(world: World) -> None:
        policies = world.topics.policies
        await asyncio.gather(
            policies.set_for_namespace(DEFAULT, MESSAGE_TTL, 7),
            policies.set_for_namespace(DEFAULT, MAX_PRODUCERS, 8),
        )
        effective = policies.of_namespace(DEFAULT)
        assert (effective[MESSAGE_TTL], effective[MAX_PRODUCERS]) == (7, 8)

    run(scenario)


def test_records_of_before_there_was_a_table_are_understood() -> None:
    async def scenario(world: World) -> None:
        creation = {"allowAutoTopicCreation": True, "topicType": "partitioned"}
        old = {"autoTopicCreation": creation | {"defaultNumPartitions": 3}}
        await world.backend.metadata.put(
            f"/namespaces/{DEFAULT}", json.dumps(old | {"deduplicationEnabled": True}).encode()
        )
        effective = world.topics.policies.of_namespace(DEFAULT)
        assert effective[AUTO_TOPIC_CREATION]["defaultNumPartitions"] == 3
        assert effective[DEDUPLICATION]
        await world.topics.policies.set_for_namespace(DEFAULT, AUTO_TOPIC_CREATION, None)
        assert not world.topics.policies.namespace_values(DEFAULT).get(AUTO_TOPIC_CREATION.name)

    run(scenario)


def test_another_broker_s_change_arrives_in_the_same_way() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        other = _another(world.backend)
        await other.set_for_namespace(DEFAULT, MESSAGE_TTL, 9)
        await world.topics.following.told()
        assert topic.policies[MESSAGE_TTL] == 9

    run(scenario)


def _another(backend: MemoryBackend) -> Policies:
    config = BrokerConfig()
    return Policies(backend.metadata, Tenants(backend.metadata, config), config, lambda name: None)


def test_what_was_stored_before_it_was_checked_counts_as_not_set() -> None:
    async def scenario(world: World) -> None:
        policies = world.topics.policies
        await world.topic()
        odd = {
            "max_producers_per_topic": "many",
            "message_ttl_in_seconds": -5,
            "resource_group_name": "\ud800",
            "persistence": {"managedLedgerMaxMarkDeleteRate": float("nan")},
            "bookieAffinityGroup": [float("inf")],
            "backlog_quota_map": {"destination_storage": 5},
            "deduplicationEnabled": True,
        }
        await world.backend.metadata.put(f"/namespaces/{DEFAULT}", json.dumps(odd).encode(), -1)
        holds = policies.of(ORDERS)
        assert (holds[MAX_PRODUCERS], holds[MESSAGE_TTL], holds[DEDUPLICATION]) == (5, 30, True)
        assert list(policies.namespace_values(DEFAULT)) == [DEDUPLICATION.name]
        quota = {"message_age": {"limitTime": 2, "policy": "consumer_backlog_eviction"}}
        await policies.change_for_namespace(
            DEFAULT, BACKLOG_QUOTAS, lambda now: (now or {}) | quota
        )
        assert list(policies.namespace_values(DEFAULT)) == [DEDUPLICATION.name, BACKLOG_QUOTAS.name]
        for policy in (MAX_PRODUCERS, MESSAGE_TTL):
            await policies.set_for_namespace(DEFAULT, policy, 7)
            assert policies.of(ORDERS)[policy] == 7

    run(scenario, max_producers_per_topic=5, ttl_duration_default_in_seconds=30)


def test_what_changes_right_behind_the_last_news_is_told_of_too() -> None:
    """The change comes after the task that told of the last one has ended, and before its
    callbacks.
    """

    async def scenario(world: World) -> None:
        following = world.topics.following
        following._heard(DEFAULT, None)
        asyncio.get_running_loop().call_soon(following._heard, DEFAULT, None)
        await asyncio.sleep(0)
        await following.told()
        assert not following._news

    run(scenario)


def test_every_policy_that_has_a_name_is_in_the_list() -> None:
    named = [value for value in vars(table).values() if isinstance(value, Policy)]
    assert set(named) <= set(table.POLICIES)
    assert len({policy.name for policy in table.POLICIES}) == len(table.POLICIES)
