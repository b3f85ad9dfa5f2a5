"""A share group: members and epochs as in KIP-848, but several members may have a partition.

So nobody gives up a partition before another gets it, and a member follows with its next heartbeat.
Source: KIP-932.
"""

from collections.abc import Mapping
from typing import Final

from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.assignors import Assignment
from pybroker.kafka.groups.consumer_group import (
    Beat,
    ConsumerGroup,
    ConsumerLimits,
    ConsumerMember,
    GroupState,
)
from pybroker.kafka.groups.values import GroupKind, text_of, topics_in
from pybroker.kafka.offsets.records import TopicPartition

ASSIGNOR: Final = "simple"
_MOST_TOPICS: Final = 1_000  # for which a group may have positions


class ShareGroup(ConsumerGroup):
    kind = GroupKind.SHARE

    def __init__(
        self, group_id: str, limits: ConsumerLimits, epoch: int, stored_text: str = ""
    ) -> None:
        super().__init__(group_id, limits, epoch)
        self.known_topics = topics_in(stored_text)  # may have subscriptions of the group's name

    @property
    def stored_text(self) -> str:
        return text_of(self.known_topics)

    def topics_with(self, beat: Beat) -> frozenset[str]:
        return super().topics_with(beat) | self.known_topics

    @property
    def state(self) -> GroupState:
        return GroupState.STABLE if self.members else GroupState.EMPTY

    def forgets(self, partitions: Mapping[str, int]) -> bool:
        return any(not partitions.get(each, 1) for each in self.known_topics)

    def forget_gone(self, partitions: Mapping[str, int]) -> None:
        """Topics that do not exist have no subscription any more."""
        self.known_topics -= {topic for topic, count in partitions.items() if not count}

    def forget_topic(self, topic: str) -> None:
        """It is deleted: one of its name is new to the group, and stored again."""
        self.known_topics -= {topic}
        self.partitions = {name: each for name, each in self.partitions.items() if name != topic}

    def has_partitions(self, partitions: Mapping[str, int]) -> None:
        super().has_partitions(partitions)
        self.known_topics |= {topic for topic, count in partitions.items() if count}

    def _check(self, beat: Beat) -> None:
        super()._check(beat)
        check_count(self.known_topics | (beat.topics or frozenset()))

    def _assign_if_due(self) -> None:
        if self.target_epoch < self.epoch:
            subscriptions = {each.member_id: each.topics for each in self.members.values()}
            self.target = shared(subscriptions, self.partitions)
            self.assignor, self.target_epoch = ASSIGNOR, self.epoch

    def _reconcile(
        self, member: ConsumerMember, owned: frozenset[TopicPartition] | None, now_ms: int
    ) -> None:
        wanted = self.target.get(member.member_id, frozenset())
        self._is_resized |= wanted != member.assigned
        member.assigned = wanted
        if member.epoch != self.target_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.target_epoch


def check_count(topics: frozenset[str]) -> None:
    """Raises KafkaError, INVALID_REQUEST, if a group would have too many."""
    if len(topics) > _MOST_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"A share group may have {_MOST_TOPICS} topics: delete the offsets of those that it "
            "does not need any more (kafka-share-groups --delete-offsets)",
        )


def shared(
    subscriptions: Mapping[str, frozenset[str]], partitions: Mapping[str, int]
) -> Assignment:
    """Each partition has a member, and each member a partition of every topic that it subscribes
    to, as evenly as that allows.
    """
    found: dict[str, set[TopicPartition]] = {each: set() for each in subscriptions}
    turn = 0
    for topic in sorted(frozenset[str]().union(*subscriptions.values())):
        members = sorted(each for each, topics in subscriptions.items() if topic in topics)
        count = partitions.get(topic, 0)
        for index in range(max(count, len(members)) if count else 0):
            member = members[(turn + index) % len(members)]
            found[member].add(TopicPartition(topic, index % count))
        turn += count
    return {member: frozenset(places) for member, places in found.items()}
