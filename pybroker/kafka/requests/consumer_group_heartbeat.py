"""ConsumerGroupHeartbeat: a member of a KIP-848 group joins, stays, or leaves.

Versions: from 1 on a regular expression (KIP-848), and ids that the clients make (KIP-1082); a
member of version 0 gets its id here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pybroker.kafka.coordinator.consumer_groups import ConsumerGroups
from pybroker.kafka.coordinator.shard import Shard
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.consumer_group import JOINS, NOTHING, Beat, ConsumerGroup, by_topic
from pybroker.kafka.offsets.records import TopicPartition
from pybroker.kafka.permissions import require_group
from pybroker.kafka.requests.join_group import fresh_id
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.topics import partition_count, shown_topics


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    shard, group_id = await shard_to_beat(services, session, request), request["group_id"]
    topics = await _topics(services, shard.consumers.groups.get(group_id), request)
    beat = Beat(
        request["member_id"] or fresh_id(services.rng, request.client_id),
        request["member_epoch"],
        request["instance_id"],
        request["rebalance_timeout_ms"],
        topics,
        request["server_assignor"],
        _owned(services, request["topic_partitions"]),
        request.client_id or "",
        f"/{session.address}",
        request["rack_id"],
        request["subscribed_topic_regex"],
        _names(request["subscribed_topic_names"]),
        session.user,
    )
    return await answered_beat(services, shard, shard.consumers, group_id, beat)


async def shard_to_beat(services: KafkaServices, session: Session, request: Request) -> Shard:
    """The shard of the group that a heartbeat names. Raises KafkaError."""
    require_group(services, session, request["group_id"])
    if not request["group_id"]:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "A group needs an id: set group.id")
    return await services.groups.shard_of(request["group_id"])


async def answered_beat(
    services: KafkaServices, shard: Shard, groups: ConsumerGroups, group_id: str, beat: Beat
) -> Mapping[str, Any]:
    """The response to a heartbeat in a group of `groups`. Raises KafkaError, ServiceNotReady."""
    group = _group(shard, groups, group_id, beat)
    partitions = None
    if group.looks_again(beat, shard.now_ms()):
        partitions = _partition_counts(services, group.topics_with(beat))
        if group.forgets(partitions):  # unless another broker has just created it
            await services.topics.ownership.refreshed()
            group = _group(shard, groups, group_id, beat)
            partitions = _partition_counts(services, group.topics_with(beat))
    answer = groups.beat(group, beat, partitions)
    await shard.durable(group_id)
    assignment = None
    if answer.assignment is not None:
        assignment = {"topic_partitions": placed(services, answer.assignment)}
    return {
        "member_id": answer.member_id,
        "member_epoch": answer.epoch,
        "heartbeat_interval_ms": services.groups.limits.consumers.heartbeat_interval_ms,
        "assignment": assignment,
    }


def _group(shard: Shard, groups: ConsumerGroups, group_id: str, beat: Beat) -> ConsumerGroup:
    """As it is in this turn. Raises KafkaError."""
    if beat.epoch == JOINS:
        shard.check_joins(group_id, groups.kind, beat.user)
    return groups.for_beat(group_id, beat)


def _names(names: Sequence[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


async def _topics(
    services: KafkaServices, group: ConsumerGroup | None, request: Request
) -> frozenset[str] | None:
    """All topics of the member's subscription; None if it has not changed."""
    named, regex = _names(request["subscribed_topic_names"]), request["subscribed_topic_regex"]
    member = None if group is None else group.members.get(request["member_id"])
    if member is not None:
        regex = member.regex if regex is None else regex
        if regex and named is None:
            named = member.named
    if not regex:
        return named
    found = await services.groups.regexes.matching(regex, lambda: shown_topics(services))
    return (named or frozenset()) | found


def _owned(
    services: KafkaServices, owned: Sequence[Mapping[str, Any]] | None
) -> frozenset[TopicPartition] | None:
    """Topics that are not known any more have no partitions."""
    if owned is None:
        return None
    found = set()
    for each in owned:
        if (name := services.topic_ids.name_of(each["topic_id"])) is not None:
            found |= {TopicPartition(name, partition) for partition in each["partitions"]}
    return frozenset(found) or NOTHING


def _partition_counts(services: KafkaServices, topics: frozenset[str]) -> dict[str, int]:
    counts = {}
    for topic in topics:
        try:
            counts[topic] = partition_count(services, services.names.topic(topic))
        except KafkaError:  # no topic can have this name
            counts[topic] = 0
    return counts


def placed(services: KafkaServices, places: frozenset[TopicPartition]) -> list[dict[str, Any]]:
    """Partitions by topic id, with the names for those who want them."""
    return [
        {"topic_id": services.topic_ids.of(topic), "topic_name": topic, "partitions": partitions}
        for topic, partitions in by_topic(places).items()
    ]
