"""A share group's positions, for its coordinator: on partitions of this broker, and of others.

A partition whose broker does not answer has the answer NOT_LEADER_OR_FOLLOWER.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import NotServedHere
from pybroker.kafka.coordinator.shard import Shard, non_empty
from pybroker.kafka.errors import REFUSALS, ErrorCode, KafkaError, error_code
from pybroker.kafka.groups.share_group import ShareGroup, check_count
from pybroker.kafka.groups.values import GroupKind, topics_in
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import Operation, may_topic, require_topic
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Session
from pybroker.kafka.shares.progress import Answers, Progress, ShareOffsetsElsewhere, refused
from pybroker.kafka.shares.share_offsets import ShareOffsets
from pybroker.kafka.topics import partition_count

PERMITTED: Final = Session(-1)
Here = Callable[[int], Awaitable[Progress]]
Elsewhere = Callable[[ShareOffsetsElsewhere, Mapping[int, TopicName]], Awaitable[Answers]]


class GroupOffsets:
    def __init__(self, services: KafkaServices, session: Session, group_id: str) -> None:
        """`session`: of who needs a permission for each topic; PERMITTED: nobody."""
        self._services = services
        self._session = session
        self._group_id = group_id
        self._here = ShareOffsets(services, group_id)

    async def shard(self) -> Shard:
        """Raises KafkaError: GROUP_ID_NOT_FOUND, or the coordinator cannot answer."""
        shard = await self._services.groups.shard_of(self._group_id)
        await shard.durable(self._group_id)
        shard.stored(self._group_id, GroupKind.SHARE)
        return shard

    async def without_members(self) -> None:
        """Raises KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        if self._group_id in (await self.shard()).shares.groups:
            raise non_empty(self._group_id)

    async def topics(self) -> list[str]:
        """For which the group may have positions. Raises KafkaError."""
        shard = await self.shard()
        group = shard.shares.groups.get(self._group_id)
        if isinstance(group, ShareGroup):
            return sorted(group.known_topics)
        return sorted(topics_in(shard.log.state.groups[self._group_id].protocol))

    def partitions(self, topic: str) -> list[int]:
        return list(range(partition_count(self._services, self._services.names.topic(topic))))

    async def _up_to_date(self, topic: str) -> list[int]:
        """The partitions. What is missing may be new: it must not be passed over."""
        if not (found := self.partitions(topic)):
            await self._services.topics.ownership.refreshed()
            found = self.partitions(topic)
        return found

    async def progress(self, topic: str, partitions: Iterable[int]) -> Answers:
        return await self._everywhere(
            topic,
            partitions,
            lambda each: self._here.progress(topic, each),
            lambda others, names: others.progress(self._group_id, topic, names),
        )

    async def move(self, topic: str, offsets: Mapping[int, int]) -> Answers:
        """To these offsets, by partition. Raises KafkaError: NON_EMPTY_GROUP, or the group has
        positions on too many topics.
        """
        name = self._services.names.topic(topic)
        there = await self._up_to_date(topic)
        if there and may_topic(self._services, self._session, Operation.READ, name):
            await self._change_topics(lambda topics: _checked(topics | {topic}))
        return await self._everywhere(
            topic,
            offsets,
            lambda each: self._here.move(topic, each, offsets[each]),
            lambda others, names: others.move(self._group_id, topic, names, offsets),
        )

    async def delete(self, topic: str) -> Answers:
        """The subscriptions of all partitions. Raises KafkaError, NON_EMPTY_GROUP."""
        found = await self._delete(topic)
        if not refused(found):
            await self._change_topics(lambda topics: topics - {topic})
        return found

    async def delete_all(self) -> None:
        """Before the group is deleted, which must have no members. Raises KafkaError: then the
        group stays, as what names the subscriptions that are left, and this may be repeated.
        """
        await self.without_members()
        for topic in await self.topics():
            for partition, error in refused(await self._delete(topic)).items():
                if error_code(error) is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise _left(topic, partition, error)

    async def _delete(self, topic: str) -> Answers:
        return await self._everywhere(
            topic,
            await self._up_to_date(topic),
            lambda each: self._here.delete(topic, each),
            lambda others, names: others.delete(self._group_id, topic, names),
        )

    async def _change_topics(self, change: Callable[[frozenset[str]], frozenset[str]]) -> None:
        shard = await self.shard()
        shard.change_share_topics(self._group_id, change)
        await shard.durable(self._group_id)

    async def _everywhere(
        self, topic: str, partitions: Iterable[int], here: Here, elsewhere: Elsewhere
    ) -> Answers:
        found: Answers = {}
        remote: dict[int, TopicName] = {}
        name = self._services.names.topic(topic)
        async for each in paced(partitions):
            try:
                require_topic(self._services, self._session, Operation.READ, name)
                found[each] = await here(each)
            except REFUSALS as error:
                found[each] = error
                if isinstance(error, NotServedHere):
                    remote[each] = error.name
        others = self._services.remote_share_offsets
        return found | await elsewhere(others, remote) if remote and others else found


def _checked(topics: frozenset[str]) -> frozenset[str]:
    check_count(topics)
    return topics


def _left(topic: str, partition: int, error: Exception) -> KafkaError:
    code = error_code(error)
    if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # who deletes a group repeats that
    return KafkaError(code, f"{topic}-{partition}: {error}")
