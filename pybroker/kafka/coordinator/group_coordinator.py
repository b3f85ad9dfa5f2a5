"""The group coordinator: what JoinGroup, OffsetCommit and their like do, without their bytes.

Requests of one group come here in the order in which they are read. Each changes the group and the
log at once, and is answered when that is durable.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import ServiceNotReady
from pybroker.base.runtime import Clock, Tasks, do_nothing
from pybroker.broker.brokers.ownership import NotServedHere, take
from pybroker.kafka.coordinator.limits import CoordinatorLimits
from pybroker.kafka.coordinator.member_memory import MemberMemory
from pybroker.kafka.coordinator.shard import Shard, not_available
from pybroker.kafka.coordinator.topic_regexes import TopicRegexes
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.joining import join
from pybroker.kafka.groups.members import growth_by
from pybroker.kafka.groups.values import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from pybroker.kafka.offsets.log import OffsetsLog
from pybroker.kafka.offsets.logs import OffsetsLogs, number_of, topic_at

_UNKNOWN: Final = ErrorCode.UNKNOWN_MEMBER_ID


class GroupCoordinator:
    def __init__(
        self,
        logs: OffsetsLogs,
        clock: Clock,
        limits: CoordinatorLimits,
        is_certain: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_certain`: whether no other broker can have taken the groups of this one."""
        self.logs = logs
        self.clock = clock
        self.limits = limits
        self.memory = MemberMemory(limits)
        self.regexes = TopicRegexes()
        self._is_certain = is_certain
        self._shards: dict[int, Shard] = {}
        self._tasks = Tasks("Kafka's groups")
        # Called with each shard in use, now and then.
        self.when_expiring: Callable[[Shard], object] = do_nothing
        # Called with a shard that is of no use any more.
        self.when_lost: Callable[[Shard], object] = do_nothing
        logs.on_lost = self._lost
        logs.on_forgotten = self._forgotten

    async def shard_of(self, group_id: str) -> Shard:
        """Raises KafkaError: NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, INVALID_GROUP_ID."""
        if len(group_id) > self.limits.max_group_id_chars:
            raise KafkaError(
                ErrorCode.INVALID_GROUP_ID,
                f"A group id may have {self.limits.max_group_id_chars} characters",
            )
        return await self.shard(number_of(group_id))

    async def shard(self, number: int) -> Shard:
        if not self._is_certain():  # heartbeats and offsets are answered from memory
            raise not_available("Another broker may serve this group: there is no ZooKeeper")
        if (shard := self._shards.get(number)) is not None:
            return shard
        try:
            await take(self.logs.ownership, topic_at(number))
            log = await self.logs.get(number)
        except NotServedHere as error:
            raise _not_coordinator() from error
        except (ManagedLedgerError, ServiceNotReady) as error:
            raise not_available(f"The offsets cannot be read now: {error}") from error
        if self.logs.opened(number) is not log:  # it has failed or gone since
            raise _not_coordinator()
        if number not in self._shards:  # otherwise another request was faster
            self._shards[number] = Shard(log, self.limits, self.clock, self._expiring, self.memory)
        return self._shards[number]

    def _expiring(self, shard: Shard) -> None:
        self.when_expiring(shard)

    async def shards(self) -> list[Shard]:
        """All that this broker serves and that were ever used."""
        owns = self.logs.ownership.owns
        here = [each for each in self.logs.begun() if owns(topic_at(each))]
        return [await self.shard(each) for each in here]

    def in_use(self) -> list[Shard]:
        """Those that this broker has opened."""
        return list(self._shards.values())

    def _forgotten(self, log: OffsetsLog, topic: str) -> None:
        for shard in self._shards.values():
            if shard.log is log:
                shard.forget_topic(topic)

    def _lost(self, number: int, log: OffsetsLog) -> None:
        shard = self._shards.get(number)
        if shard is not None and shard.log is log:
            del self._shards[number]
            shard.stop()
            self.when_lost(shard)
            self._tasks.start(shard.close(), f"close groups {number}")

    def stop(self) -> None:
        """Answer all who wait."""
        for shard in self._shards.values():
            shard.stop()

    async def close(self) -> None:
        for shard in self._shards.values():
            await shard.close()
        self._shards.clear()
        await self._tasks.close()

    # -- membership

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """Answers when the group's next generation begins, or at once if it refuses."""
        _require_id(group_id)
        shard = await self.shard_of(group_id)
        known = shard.group(group_id)
        if request.member_id and known is None:
            return JoinAnswer(_UNKNOWN, request.member_id)
        member = None if known is None else known.member_of(request)
        self.memory.check(group_id, request.user, growth_by(request, member))
        group = shard.joinable(group_id, request.user)
        waiter: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        shard.carry_out(group, join(group, request, waiter, shard.now_ms()))
        answer = await waiter
        await shard.durable(group_id)
        return answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """Answers when the leader has assigned."""
        _require_id(group_id)
        shard = await self.shard_of(group_id)
        if (group := shard.groups.get(group_id)) is None:
            return SyncAnswer(_UNKNOWN)
        if (member := group.members.get(request.member_id)) is not None and request.assignments:
            before = sum(len(each.assignment) for each in group.members.values())
            growth = sum(len(assigned) for _, assigned in request.assignments) - before
            self.memory.check(group_id, member.user, growth)
        waiter: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        shard.carry_out(group, group.sync(request, waiter, shard.now_ms()))
        answer = await waiter
        await shard.durable(group_id)
        return answer

    async def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        _require_id(group_id)
        shard = await self.shard_of(group_id)
        if (group := shard.groups.get(group_id)) is None:
            return _UNKNOWN
        error = group.heartbeat(member_id, instance_id, generation, shard.now_ms())
        await shard.durable(group_id)
        return error

    async def leave(
        self, group_id: str, members: Sequence[tuple[str, str | None]]
    ) -> list[ErrorCode]:
        """For each member, by its id and its group.instance.id."""
        _require_id(group_id)
        shard = await self.shard_of(group_id)
        if (consumers := shard.consumers.groups.get(group_id)) is not None:
            removed = [shard.consumers.remove(consumers, *each) for each in members]
            await shard.durable(group_id)
            return removed
        if (group := shard.groups.get(group_id)) is None:
            return [_UNKNOWN] * len(members)
        errors = []
        for member_id, instance_id in members:
            error, effects = group.leave(member_id, instance_id, shard.now_ms())
            shard.carry_out(group, effects)
            errors.append(error)
        await shard.durable(group_id)
        return errors


def _not_coordinator() -> KafkaError:
    return KafkaError(ErrorCode.NOT_COORDINATOR, "Another broker serves this group")


def _require_id(group_id: str) -> None:
    """Raises KafkaError (INVALID_GROUP_ID) if it is empty."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "A group needs an id: set group.id")
