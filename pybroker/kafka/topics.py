"""Topics and partitions by Kafka's names: found, created, loaded."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace
from pybroker.broker.brokers.ownership import take
from pybroker.broker.client_topics import persistent
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.table import AUTO_TOPIC_CREATION
from pybroker.kafka.configs.topic_configs import apply_policies, as_properties
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.pacing import paced
from pybroker.kafka.services import KafkaServices

_NAMES_A_TURN = 500


def partition_name(services: KafkaServices, topic: str, partition: int) -> TopicName:
    """The topic of Pulsar's that is this partition. Raises KafkaError if there is none."""
    name = services.names.topic(topic)
    count = partition_count(services, name)
    if not 0 <= partition < count:
        raise unknown_partition(topic, partition)
    return name.partition_at(partition) if services.topics.tenants.partitions(name) else name


async def found_partition(services: KafkaServices, topic: str, partition: int) -> TopicName:
    """Like `partition_name`; but another broker may have just created the topic, or given it more
    partitions.
    """
    try:
        return partition_name(services, topic, partition)
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    with suppress(ServiceNotReady):
        await services.topics.ownership.refreshed()
    return partition_name(services, topic, partition)


def unknown_partition(topic: str, partition: int) -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"{topic} has no partition {partition}: create the topic, or give it more partitions",
    )


def partition_count(services: KafkaServices, name: TopicName) -> int:
    """0 if there is no such topic."""
    return services.topics.tenants.partitions(name) or int(services.topics.exists(name))


async def partition_topic(services: KafkaServices, topic: str, partition: int) -> Topic:
    """The topic that stores this partition, loaded; a known partition is created by its first use.

    Raises KafkaError, PulsarError, ManagedLedgerError; NotServedHere if another broker has it.
    """
    name = await found_partition(services, topic, partition)
    if (found := services.topics.serving(name)) is not None:
        return found
    await take(services.topics.ownership, name)
    served = await services.topics.served(name, create=name.partition >= 0)
    if served is None:
        raise unknown_partition(topic, partition)
    return persistent(served)


async def existing_partitions(services: KafkaServices, topic: str, create: bool) -> int:
    """The number of partitions; 0 if the topic does not exist. With `create`, it is created if
    that is allowed: allowAutoTopicCreation, defaultNumPartitions. Raises KafkaError, PulsarError.
    """
    name = services.names.topic(topic)
    await services.topics.settled(name)
    count = partition_count(services, name)
    if not count:
        await services.topics.ownership.refreshed()  # another broker may have just created it
        count = partition_count(services, name)
    if count or not create:
        return count
    services.topics.tenants.check_namespace(name.namespace_name)
    creation = services.topics.policies.of_namespace(name.namespace_name)[AUTO_TOPIC_CREATION]
    if not creation["allowAutoTopicCreation"]:
        return 0
    with suppress(Conflict):  # a concurrent request has created it
        await create_topic(services, name, default_partitions(services), {})
    return partition_count(services, name)


async def create_topic(
    services: KafkaServices, name: TopicName, partitions: int, configs: Mapping[str, str]
) -> None:
    """A topic that keeps its messages as Kafka's do. Raises Conflict, KafkaError, PulsarError."""
    await services.topics.create_partitioned(name, partitions, as_properties(configs))
    await apply_policies(services, name, configs)


def default_partitions(services: KafkaServices) -> int:
    """Of a new topic for which nobody says how many."""
    policies = services.topics.policies.of_namespace(services.names.namespace_name)
    number: int = policies[AUTO_TOPIC_CREATION].get("defaultNumPartitions") or 1
    return number


async def shown_topics(services: KafkaServices) -> AsyncIterator[tuple[str, int]]:
    """All topics that Kafka's clients see, sorted, with their partitions."""
    namespace = services.names.namespace_name
    if not services.topics.tenants.has_namespace(namespace):
        return
    pace, last = Pace(_NAMES_A_TURN), ""
    for text in (await services.topics.lists.get(namespace)).names:
        await pace.step()
        name = services.names.shown(TopicName.parse(text).partitioned_name)
        if name is None or name == last:
            continue
        last = name
        if count := partition_count(services, services.names.topic(name)):
            yield name, count


async def learn_ids(services: KafkaServices, asked: Iterable[bytes]) -> None:
    """Afterwards `services.topic_ids` knows the topics of these ids, if there are such topics: they
    may have been told by another broker, or before a restart. Looks at all topics once, however
    many ids are unknown, and at most once in a second; requests meanwhile wait for that look.
    """
    ids = services.topic_ids
    if all(ids.name_of(topic_id) is not None for topic_id in asked):
        return
    if ids.may_look(services.clock.monotonic_s()):
        ids.looking = services.tasks.start(_learn_all(services), "the ids of topics")
    if ids.looking is not None and not ids.looking.done():
        await asyncio.shield(ids.looking)


async def _learn_all(services: KafkaServices) -> None:
    async for name, _ in shown_topics(services):
        services.topic_ids.of(name)


async def named(
    services: KafkaServices, topics: Sequence[Mapping[str, Any]]
) -> AsyncIterator[tuple[str | None, Mapping[str, Any]]]:
    """The topics of a request whose version has ids instead of names, with their names; None: no
    topic has the id.
    """
    await learn_ids(services, [each["topic_id"] for each in topics])
    async for each in paced(topics):
        yield services.topic_ids.name_of(each["topic_id"]), each
