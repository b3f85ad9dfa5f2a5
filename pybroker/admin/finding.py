"""Finds the topics that a request names."""

import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from pybroker.base.errors import NotAllowed, TopicNotFound
from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace
from pybroker.broker.brokers.ownership import take_all
from pybroker.broker.client_topics import ServedTopic, persistent
from pybroker.broker.namespaces.tenants import Conflict, NotFound
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.topics import Topics

log = logging.getLogger(__name__)
_PARTS_A_TURN: Final = 100


async def existing(topics: Topics, name: TopicName, hint: str = "") -> Topic:
    """The topic, loaded if necessary. Raises TopicNotFound, or NotAllowed if not persistent."""
    return persistent(await served(topics, name, hint))


async def served(topics: Topics, name: TopicName, hint: str = "") -> ServedTopic:
    """As `existing`, but for non-persistent topics too."""
    topic = await topics.served(name)
    if topic is None:
        raise TopicNotFound(f"{name} does not exist{hint}")
    return topic


async def single(topics: Topics, name: TopicName, what: str) -> Topic:
    """A topic without partitions. Raises NotAllowed if the topic is partitioned."""
    if topics.tenants.partitions(name):
        raise NotAllowed(f"{name} is partitioned: {what} one of its partitions")
    return await existing(topics, name)


def partitioned(topics: Topics, name: TopicName) -> int:
    """The number of partitions. Raises TopicNotFound if the topic is not partitioned."""
    if not (count := topics.tenants.partitions(name)):
        raise TopicNotFound(f"{name} is not a partitioned topic")
    return count


def names_of_parts(topics: Topics, name: TopicName) -> list[TopicName]:
    """The topic itself, or its partitions if it is partitioned. Raises TopicNotFound."""
    count = topics.tenants.partitions(name)
    if not count and not topics.exists(name):
        raise TopicNotFound(f"{name} does not exist")
    return [name.partition_at(index) for index in range(count)] or [name]


async def each_part(topics: Topics, name: TopicName) -> AsyncIterator[Topic]:
    """The topics of `names_of_parts`, loaded one after the other. Raises TopicNotFound; NotAllowed
    for non-persistent topics.
    """
    async for topic in each_served(topics, name):
        yield persistent(topic)


async def each_served(topics: Topics, name: TopicName) -> AsyncIterator[ServedTopic]:
    """As `each_part`, but for non-persistent topics too."""
    count = topics.tenants.partitions(name)
    pace = Pace(_PARTS_A_TURN)
    for part in [name.partition_at(index) for index in range(count)] or [name]:
        yield await served(topics, part)
        await pace.step()  # loaded topics are returned without waiting


async def delete_namespace(topics: Topics, namespace: str, force: bool = True) -> None:
    """Deletes a namespace with all its topics, even if they are in use. Raises NotFound,
    NotAllowed; Conflict if it has topics and `force` is not set.
    """
    topics.tenants.check_deletable(namespace)
    with topics.tenants.going(namespace):
        await topics.at_rest(namespace)
        if not force:
            await check_empty(topics, namespace)
        await take_all(topics.ownership, await _all_of(topics, namespace))
        for scalable_topic in topics.tenants.scalable_topics(namespace):
            with suppress(TopicNotFound):  # another request has deleted it
                await topics.scalable.delete(scalable_topic, force=True)
        for partitioned_topic in topics.tenants.partitioned_topics(namespace):
            with suppress(TopicNotFound):
                await topics.delete_partitioned(partitioned_topic, force=True)
        for name in list((await topics.lists.get(namespace)).names):
            with suppress(TopicNotFound):
                await topics.delete(TopicName.parse(name), force=True)
        await topics.schemas.forget_namespace(namespace)
        await topics.tenants.delete_namespace(namespace)


async def finish_deletions_of_a_cluster(topics: Topics) -> None:
    """Finishes what brokers of a cluster had begun when its data was moved to this broker, which is
    alone. Raises ManagedLedgerError.
    """
    tenants = topics.tenants
    for name in tenants.doomed_topics():
        log.warning("the deletion of %s was interrupted; finishing it", name)
        await topics.delete_partitioned(name, force=True)
    for namespace in tenants.marked():
        log.warning("the deletion of namespace %s was interrupted; finishing it", namespace)
        force = any(mark.forced for mark in tenants.marks(namespace))
        with suppress(NotFound, Conflict):  # Conflict: it needed an empty namespace
            await delete_namespace(topics, namespace, force)
        await tenants.unmark(namespace, forced_too=True)


async def _all_of(topics: Topics, namespace: str) -> list[TopicName]:
    names = [TopicName.parse(name) for name in (await topics.lists.get(namespace)).names]
    return [*names, *topics.tenants.scalable_topics(namespace)]


async def check_empty(topics: Topics, namespace: str) -> None:
    """Raises NotFound; Conflict if the namespace has topics."""
    if names := await _all_of(topics, namespace):
        raise Conflict(
            f"Namespace {namespace} has {len(names)} topics; delete them first or use force"
        )


async def unload_all(topics: Topics, namespace: str) -> None:
    for name in topics.loaded_names():
        if name.namespace_name == namespace:
            await topics.unload(name)
