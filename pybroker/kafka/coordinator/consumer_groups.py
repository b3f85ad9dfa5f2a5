"""The groups of a shard whose members send heartbeats (KIP-848, KIP-932), with their timers.

Only a group's epoch is stored, whenever it rises: members join again after a restart of the broker,
and no epoch is used twice.
"""

import asyncio
import math
from collections.abc import Mapping

from pybroker.base.runtime import Clock
from pybroker.kafka.coordinator.limits import CoordinatorLimits
from pybroker.kafka.coordinator.member_memory import MemberMemory
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.groups.consumer_group import (
    JOINS,
    Beat,
    BeatAnswer,
    ConsumerGroup,
    unknown_member,
)
from pybroker.kafka.groups.values import StoredGroup
from pybroker.kafka.offsets.log import OffsetsLog
from pybroker.kafka.offsets.records import GroupRecord


class ConsumerGroups:
    def __init__(
        self,
        log: OffsetsLog,
        limits: CoordinatorLimits,
        clock: Clock,
        memory: MemberMemory,
        made: type[ConsumerGroup] = ConsumerGroup,
    ) -> None:
        """`made`: the class of its groups."""
        self.kind = made.kind
        self._made = made
        self._log = log
        self._memory = memory
        self._limits = limits
        self._clock = clock
        self.groups: dict[str, ConsumerGroup] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)

    def for_beat(self, group_id: str, beat: Beat) -> ConsumerGroup:
        """The group, created if the member joins. Raises KafkaError."""
        group = self.groups.get(group_id)
        if group is not None:
            return group
        if beat.epoch != JOINS:
            raise unknown_member(beat.member_id)
        stored = self._log.state.groups.get(group_id)
        epoch = 0 if stored is None else max(0, stored.generation)
        text = "" if stored is None or stored.kind is not self.kind else stored.protocol
        return self._made(group_id, self._limits.consumers, epoch, text)

    def beat(
        self, group: ConsumerGroup, beat: Beat, partitions: Mapping[str, int] | None
    ) -> BeatAnswer:
        """`partitions` are None if they need not be looked at again. Raises the KafkaErrors
        of ConsumerGroup.beat.
        """
        epoch = group.epoch
        try:
            if partitions is not None:
                group.forget_gone(partitions)
            if beat.epoch >= JOINS:
                group.check(beat)
                self._memory.check(group.group_id, beat.user, group.growth_bytes(beat))
                if partitions is not None:
                    group.has_partitions(partitions)
            return group.beat(beat, self._now_ms())
        finally:
            self._changed(group, epoch)

    def remove(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> ErrorCode:
        epoch = group.epoch
        error = group.remove(member_id, instance_id)
        self._changed(group, epoch)
        return error

    def _wake(self, group: ConsumerGroup) -> None:
        epoch = group.epoch
        group.wake(self._now_ms())
        self._changed(group, epoch)

    def _changed(self, group: ConsumerGroup, epoch: int) -> None:
        if group.epoch != epoch and (group.members or group.group_id in self.groups):
            self._store(group)
        if (timer := self._timers.pop(group.group_id, None)) is not None:
            timer.cancel()
        if not group.members:
            self.groups.pop(group.group_id, None)
            self._memory.drop(group.group_id)
            return
        self.groups[group.group_id] = group
        if (sizes := group.changed_sizes()) is not None:
            self._memory.put(group.group_id, sizes)
        if group.wake_ms < math.inf:
            delay_s = max(0.0, group.wake_ms - self._now_ms()) / 1000
            loop = asyncio.get_running_loop()
            self._timers[group.group_id] = loop.call_later(delay_s, self._wake, group)

    def _store(self, group: ConsumerGroup) -> None:
        now_ms = self._clock.now_ms()
        protocol_type = self.kind.shown
        stored = StoredGroup(
            group.epoch, protocol_type, group.stored_text, "", (), now_ms, self.kind
        )
        self._log.append(GroupRecord(group.group_id, stored))
        user = next((each.user for each in group.members.values()), "")
        self._log.note_owner(group.group_id, user)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for group_id in self.groups:
            self._memory.drop(group_id)
        self.groups.clear()
