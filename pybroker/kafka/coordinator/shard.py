"""The groups in one offsets log, with their timers.

A group exists here while it has members, or ids that were handed out; one that only has offsets is
in the log. What a group decides goes to the log first, in the order of its effects: an answer is
sent when everything that is known of the group is durable.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.runtime import Clock, Tasks
from pybroker.kafka.coordinator.consumer_groups import ConsumerGroups
from pybroker.kafka.coordinator.expiry import expired
from pybroker.kafka.coordinator.limits import CoordinatorLimits
from pybroker.kafka.coordinator.member_memory import MemberMemory
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.classic_group import NEVER, ClassicGroup
from pybroker.kafka.groups.consumer_group import ConsumerGroup
from pybroker.kafka.groups.share_group import ShareGroup
from pybroker.kafka.groups.states import GroupState
from pybroker.kafka.groups.values import Effect, GroupKind, Store, StoredGroup, text_of, topics_in
from pybroker.kafka.offsets.log import OffsetsLog
from pybroker.kafka.offsets.records import GoneRecord, GroupRecord, Key

_LATEST_MS: Final = 3_600_000  # a timer is set for an hour at most


class Shard:
    def __init__(
        self,
        log: OffsetsLog,
        limits: CoordinatorLimits,
        clock: Clock,
        when_expiring: Callable[["Shard"], object],
        memory: MemberMemory,
    ) -> None:
        self.log = log
        self.memory = memory
        self._when_expiring = when_expiring
        self._limits = limits
        self._clock = clock
        self.groups: dict[str, ClassicGroup] = {}
        self.consumers = ConsumerGroups(log, limits, clock, memory)
        self.shares = ConsumerGroups(log, limits, clock, memory, ShareGroup)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._tasks = Tasks(f"groups of {log.name}")
        self._closed = False
        for group_id, stored in log.state.groups.items():
            if stored.members:
                group = ClassicGroup.restored(group_id, limits.group, stored, self.now_ms())
                self.groups[group_id] = group
                self._arm(group)
        self._expire_later()

    def now_ms(self) -> int:
        """The time of sessions: it never goes back."""
        return int(self._clock.monotonic_s() * 1000)

    # -- groups

    def group(self, group_id: str) -> ClassicGroup | None:
        """A group with or without members; None if nothing is known of it."""
        if (group := self.groups.get(group_id)) is not None:
            return group
        stored = self.log.state.groups.get(group_id)
        if stored is None or self.beating(group_id) is not None:
            return None
        return ClassicGroup.restored(group_id, self._limits.group, stored, self.now_ms())

    def joinable(self, group_id: str, user: str) -> ClassicGroup:
        """The group, created if there is none. Raises KafkaError: the user has no room for another
        one, or it has members of the other kind.
        """
        if (beating := self.beating(group_id)) is not None:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"{group_id} has members of the kind {beating.kind.shown}: use the same",
            )
        group = self.group(group_id)
        if group is None:
            self.check_room(group_id, user)
            group = ClassicGroup(group_id, self._limits.group, self.now_ms())
        self.groups[group_id] = group
        return group

    def beating(self, group_id: str) -> ConsumerGroup | None:
        """The group, if it has members that send heartbeats."""
        return self.consumers.groups.get(group_id) or self.shares.groups.get(group_id)

    def stored(self, group_id: str, kind: GroupKind) -> StoredGroup:
        """What is stored of a group. Raises KafkaError if there is none of this kind."""
        stored = self.log.state.groups.get(group_id)
        if stored is None or stored.kind is not kind:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"There is no group {group_id} of the kind {kind.shown}",
            )
        return stored

    def change_share_topics(
        self, group_id: str, change: Callable[[frozenset[str]], frozenset[str]]
    ) -> None:
        """For which topics a share group without members may have positions. Raises KafkaError:
        GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        if group_id in self.shares.groups:
            raise non_empty(group_id)
        stored = self.stored(group_id, GroupKind.SHARE)
        if (text := text_of(change(topics_in(stored.protocol)))) != stored.protocol:
            self.log.append(GroupRecord(group_id, replace(stored, protocol=text)))

    def check_joins(self, group_id: str, kind: GroupKind, user: str) -> None:
        """Whether a member may join the group by heartbeats. Raises KafkaError."""
        beating, group = self.beating(group_id), self.groups.get(group_id)
        if beating is not None and beating.kind is not kind:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"{group_id} has members of the kind {beating.kind.shown}: use another group",
            )
        if group is not None and (group.members or group.pending):
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"{group_id} has members with group.protocol=classic: use the same",
            )
        if beating is None and group is None and group_id not in self.log.state.groups:
            self.check_room(group_id, user)

    def check_room(self, group_id: str, user: str, growth_bytes: int = 1) -> None:
        """Whether a group may take so much more in the log: one without an owner counts as the
        user's. Raises KafkaError.
        """
        state, limits = self.log.state, self._limits
        owner = state.owners.get(group_id, user)
        if state.bytes_of_user[owner] + growth_bytes > limits.user_log_bytes:
            raise no_room(f"{owner[:200]!r} has as many groups and offsets as a user may have")
        if state.size_bytes + growth_bytes > limits.max_log_bytes:
            raise no_room("The broker keeps as many groups and offsets as it may")

    def carry_out(self, group: ClassicGroup, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Store):
                stored = replace(effect.group, since_ms=self._clock.now_ms())
                self.log.append(GroupRecord(group.group_id, stored))
                self.log.note_owner(group.group_id, next(iter(group.sizes.of_user), ""))
            elif isinstance(effect.waiter, asyncio.Future) and not effect.waiter.done():
                effect.waiter.set_result(effect.answer)
        self._arm(group)

    async def durable(self, key: Key) -> None:
        """Returns when everything that is known of the group or producer is durable. Raises
        KafkaError.
        """
        try:
            await self.log.durable(key)
        except ManagedLedgerError as error:
            raise not_available(str(error)) from error

    def may_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, in_txn: bool
    ) -> ErrorCode:
        """Whether the member may commit offsets in this generation, or with this member epoch."""
        if (consumers := self.consumers.groups.get(group_id)) is not None:
            error = consumers.may_commit(member_id, generation)
            is_stale = in_txn and error is ErrorCode.STALE_MEMBER_EPOCH
            return ErrorCode.ILLEGAL_GENERATION if is_stale else error
        group = self.group(group_id)
        if group is None:
            is_nobody = generation < 0 and not member_id
            return ErrorCode.NONE if is_nobody else ErrorCode.ILLEGAL_GENERATION
        return group.may_commit(member_id, instance_id, generation, self.now_ms(), in_txn)

    # -- time

    def _arm(self, group: ClassicGroup) -> None:
        group_id = group.group_id
        if (timer := self._timers.pop(group_id, None)) is not None:
            timer.cancel()
        if self._closed or self._is_idle(group):
            self.groups.pop(group_id, None)
            self.memory.drop(group_id)
            return
        self.memory.put(group_id, group.sizes.of_user)
        if group.wake_ms != NEVER:
            delay_ms = min(max(0, group.wake_ms - self.now_ms()), _LATEST_MS)
            loop = asyncio.get_running_loop()
            self._timers[group_id] = loop.call_later(delay_ms / 1000, self._wake, group)

    def _is_idle(self, group: ClassicGroup) -> bool:
        """Whether the log knows as much about it."""
        is_over = group.state in (GroupState.EMPTY, GroupState.DEAD)
        return is_over and not group.pending

    def _wake(self, group: ClassicGroup) -> None:
        del self._timers[group.group_id]
        self.carry_out(group, group.wake(self.now_ms()))

    # -- deletion

    def forget_topic(self, topic: str) -> None:
        """It is deleted, and what is stored of groups is changed by the log."""
        for group in self.shares.groups.values():
            if isinstance(group, ShareGroup):
                group.forget_topic(topic)

    def delete(self, group_id: str) -> None:
        """Raises KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        if not self.log.state.knows(group_id):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no group {group_id}")
        if self.beating(group_id) is not None:
            raise non_empty(group_id)
        group = self.groups.get(group_id)
        if group is not None:
            if group.members:
                raise non_empty(group_id)
            self.carry_out(group, group.die(self.now_ms()))
        self.log.append(GoneRecord(group_id))

    def _expire_later(self) -> None:
        delay_s = self._limits.expiry_interval_ms / 1000
        self._expiry = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._tasks.start(self._expire_some(), "expiry of offsets")
        self._expire_later()

    async def _expire_some(self) -> None:
        self._when_expiring(self)
        for group_id in self.log.state.group_ids():
            if self._closed:
                return
            beating = self.beating(group_id)
            has_members = group_id in self.groups or beating is not None
            retention_ms, now_ms = self._limits.offsets_retention_ms, self._clock.now_ms()
            record = expired(
                self.log.state,
                group_id,
                has_members,
                now_ms,
                retention_ms,
                None if beating is None else beating.topics,
            )
            if record is not None:
                self.log.append(record)
            await asyncio.sleep(0)

    # -- the end

    def stop(self) -> None:
        """Whoever waits looks the coordinator up again."""
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        for group in list(self.groups.values()):
            self.carry_out(group, group.die(self.now_ms()))
        self.consumers.stop()
        self.shares.stop()

    async def close(self) -> None:
        self.stop()
        await self._tasks.close()


def no_room(why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        f"{why}: delete groups that nobody uses (kafka-consumer-groups --delete)",
    )


def not_available(why: str) -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, why)


def non_empty(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.NON_EMPTY_GROUP, f"{group_id} has members: stop them first")
