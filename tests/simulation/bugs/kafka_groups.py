"""A group of Kafka's that listens to members of the past."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pybroker.kafka.coordinator.shard import Shard
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.groups import joining
from pybroker.kafka.groups.classic_group import ClassicGroup
from pybroker.kafka.groups.consumer_group import ConsumerGroup
from pybroker.kafka.groups.members import Member
from pybroker.kafka.groups.values import JoinRequest
from pybroker.kafka.offsets.log import OffsetsLog
from pybroker.kafka.offsets.state import OffsetsState


@contextmanager
def kafka_old_generations_commit() -> Iterator[None]:
    """Whoever was a member may commit offsets."""
    with patch.object(Shard, "may_commit", lambda *_, **__: ErrorCode.NONE):
        yield


@contextmanager
def kafka_offsets_lost_at_recovery() -> Iterator[None]:
    """A group that was read from its log knows nothing of offsets in open transactions."""
    right = OffsetsLog._replay

    def replay(self: OffsetsLog, entry: bytes) -> int:
        with patch.object(OffsetsState, "_hold", lambda *_: None):
            return right(self, entry)

    with patch.object(OffsetsLog, "_replay", replay):
        yield


@contextmanager
def kafka_partitions_given_too_early() -> Iterator[None]:
    """A member of KIP-848 gets a partition before who has it has given it up."""
    right = ConsumerGroup._reconcile

    def reconcile(self: ConsumerGroup, *args: Any) -> None:
        self._owners.clear()
        right(self, *args)

    with patch.object(ConsumerGroup, "_reconcile", reconcile):
        yield


@contextmanager
def kafka_static_members_not_fenced() -> Iterator[None]:
    """Who comes again with a group.instance.id gets the member id of its predecessor, too."""
    right = joining._take_place

    def take_place(group: ClassicGroup, request: JoinRequest, former: Member, *args: Any) -> None:
        right(group, replace(request, fresh_id=former.member_id), former, *args)

    with patch.object(joining, "_take_place", take_place):
        yield


BUGS = {
    "kafka-offsets-lost-at-recovery": kafka_offsets_lost_at_recovery,
    "kafka-old-generations-commit": kafka_old_generations_commit,
    "kafka-partitions-given-too-early": kafka_partitions_given_too_early,
    "kafka-static-members-not-fenced": kafka_static_members_not_fenced,
}
