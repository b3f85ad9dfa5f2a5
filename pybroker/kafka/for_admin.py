"""Groups for the admin API: who is in them, how far behind they are; offsets in any transaction."""

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from typing import Any, Final

from pybroker.base.errors import AuthorizationError, ServiceNotReady, TopicTerminated
from pybroker.base.names import TopicName, TxnId
from pybroker.base.runtime import Pace
from pybroker.broker.brokers.ownership import NotServedHere, take
from pybroker.broker.namespaces.tenants import Conflict, NotFound
from pybroker.broker.persistent.entry_metadata import EntryStamps
from pybroker.kafka.coordinator.committing import Committer, Wanted
from pybroker.kafka.coordinator.describing import (
    Listed,
    list_groups,
    listed_in,
    members_in,
    read_by,
)
from pybroker.kafka.coordinator.shard import Shard
from pybroker.kafka.errors import REFUSALS, ErrorCode, KafkaError, error_code, error_message
from pybroker.kafka.log.partition_log import partition_log
from pybroker.kafka.offsets.logs import topic_of_group
from pybroker.kafka.offsets.records import Committed, TopicPartition
from pybroker.kafka.pacing import paced
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.shares.group_offsets import PERMITTED, GroupOffsets
from pybroker.kafka.shares.progress import UNKNOWN, Answers, Progress
from pybroker.kafka.shares.share_offsets import ShareOffsets
from pybroker.kafka.topics import partition_count, partition_name, partition_topic
from pybroker.security.authorization import Need, Target
from pybroker.security.identity import Identity

_OFFSETS_A_TURN: Final = 100
_MISSING: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND)
_AGAIN: Final = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)


class KafkaForAdmin:
    """Implements KafkaGroups of the admin API. Everything raises PulsarError."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services

    async def groups(self) -> list[dict[str, Any]]:
        with _errors():
            listed = await list_groups(self._services.groups)
            return [await self._group(each) async for each in paced(listed)]

    async def group(self, group_id: str) -> dict[str, Any]:
        """With the offsets of its partitions. Raises NotFound."""
        await take(self._services.topics.ownership, topic_of_group(group_id))
        with _errors():
            listed = await list_groups(self._services.groups)
            for each in listed:
                if each.group_id == group_id:
                    shard = await self._services.groups.shard_of(group_id)
                    offsets = await self._offsets(shard, group_id)
                    return {**await self._group(each), "offsets": offsets}
        raise NotFound(f"There is no group {group_id}")

    async def _group(self, listed: Listed) -> dict[str, Any]:
        shard = await self._services.groups.shard_of(listed.group_id)
        return {
            "group": listed.group_id,
            "kind": listed.kind,
            "state": listed.state,
            "members": members_in(shard, listed.group_id),
            "committedPartitions": len(shard.log.state.of(listed.group_id)),
        }

    async def _offsets(self, shard: Shard, group_id: str) -> list[dict[str, Any]]:
        committed = dict(sorted(shard.log.state.of(group_id).items()))
        ends, found = await self._ends(committed), []
        for place, each in committed.items():
            offset = {"topic": place.topic, "partition": place.partition}
            offset |= {"committedOffset": each.offset, "metadata": each.metadata}
            if (end := ends.get(place)) is not None:
                offset |= {"endOffset": end, "lag": max(0, end - each.offset)}
            found.append(offset)
        return found

    async def _ends(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Without those of partitions that do not exist any more, or whose broker does not say."""
        found: dict[TopicPartition, int] = {}
        remote: dict[str, dict[int, TopicName]] = {}
        async for place in paced(places):
            with suppress(*REFUSALS):
                name = partition_name(self._services, *place)
                try:
                    found[place] = await self._end_offset(place)
                except NotServedHere:
                    remote.setdefault(place.topic, {})[place.partition] = name
        if (ask := self._services.remote_end_offsets) is not None:
            for topic, names in remote.items():
                for partition, end in (await ask(topic, names)).items():
                    found[TopicPartition(topic, partition)] = end
        return found

    async def _end_offset(self, place: TopicPartition) -> int:
        """Raises KafkaError, PulsarError, ManagedLedgerError; NotServedHere."""
        topic = await partition_topic(self._services, *place)
        return await (await partition_log(topic).opened()).end_offset(committed_only=True)

    async def end_offsets(self, topic: str) -> list[dict[str, int]]:
        """Of the partitions that this broker serves. Raises NotFound."""
        with _errors():
            owns, found = self._services.topics.ownership.owns, []
            async for index in paced(self._partitions(topic)):
                place = TopicPartition(topic, index)
                if not owns(partition_name(self._services, *place)):
                    continue
                with suppress(TopicTerminated):  # it was made scalable, and is gone
                    found.append({"partition": index, "endOffset": await self._end_offset(place)})
            return found

    # -- share groups

    async def share_offsets(self, group_id: str, topic: str) -> list[dict[str, Any]]:
        here = ShareOffsets(self._services, group_id)
        partitions = self._partitions(topic)
        return await _shown_here(partitions, lambda each: here.progress(topic, each))

    async def move_share_offsets(
        self, group_id: str, topic: str, offsets: Mapping[int, int], only_here: bool
    ) -> list[dict[str, Any]]:
        if only_here:
            here = ShareOffsets(self._services, group_id)
            return await _shown_here(offsets, lambda each: here.move(topic, each, offsets[each]))
        group = await self._without_members(group_id, topic)
        with _errors():
            return _shown_all(await group.move(topic, offsets))

    async def delete_share_offsets(
        self, group_id: str, topic: str, only_here: bool
    ) -> list[dict[str, Any]]:
        if only_here:
            here, partitions = ShareOffsets(self._services, group_id), self._partitions(topic)
            return await _shown_here(partitions, lambda each: here.delete(topic, each))
        group = await self._without_members(group_id, topic)
        with _errors():
            return _shown_all(await group.delete(topic))

    async def _without_members(self, group_id: str, topic: str) -> GroupOffsets:
        """Raises NotServedHere, if another broker has the group; NotFound, Conflict."""
        await take(self._services.topics.ownership, topic_of_group(group_id))
        self._partitions(topic)
        group = GroupOffsets(self._services, PERMITTED, group_id)
        with _errors():
            await group.without_members()
        return group

    def _partitions(self, topic: str) -> range:
        """Raises NotFound."""
        with _errors():
            if count := partition_count(self._services, self._services.names.topic(topic)):
                return range(count)
        raise NotFound(f"There is no topic {topic}")

    # -- metrics

    @property
    def members_bytes(self) -> int:
        return self._services.groups.memory.size_bytes

    async def measured(self) -> AsyncIterator[dict[str, Any]]:
        pace = Pace(_OFFSETS_A_TURN)
        for shard in self._services.groups.in_use():
            for each in listed_in(shard):
                offsets, lags = shard.log.state.of(each.group_id), dict[str, int]()
                for place, committed in list(offsets.items()):
                    await pace.step()
                    if (lag := self._lag(place, committed)) is not None:
                        lags[lag[0]] = lag[1]
                members = members_in(shard, each.group_id)
                yield {"group": each.group_id, "kind": each.kind, "members": members, "lag": lags}

    def _lag(self, place: TopicPartition, committed: Committed) -> tuple[str, int] | None:
        """With the partition's name; None if it is not loaded."""
        with suppress(KafkaError):
            name = partition_name(self._services, *place)
            if (lag := self.lag_behind(name, committed.offset)) is not None:
                return str(name), lag
        return None

    def lag_behind(self, partition: TopicName, offset: int) -> int | None:
        """How many messages follow; None if the partition is not loaded."""
        topic = self._services.topics.serving(partition)
        stamps = None if topic is None else topic.ledger.interceptor
        if isinstance(stamps, EntryStamps) and stamps.index is not None:
            return max(0, stamps.index + 1 - offset)
        return None

    def positions(self, topic: TopicName) -> dict[str, dict[TopicName, int]]:
        """Of the groups here that read a topic: the committed offset of each partition, 0 where
        there is none.
        """
        found: dict[str, dict[TopicName, int]] = {}
        name = self._services.names.shown(topic)
        if name is None:
            return found
        places = [
            TopicPartition(name, index) for index in range(partition_count(self._services, topic))
        ]
        for shard in self._services.groups.in_use():
            for group_id in shard.log.state.group_ids():
                offsets = shard.log.state.of(group_id)
                if any(each in offsets for each in places) or name in read_by(shard, group_id):
                    found[group_id] = {
                        partition_name(self._services, *each): offsets[each].offset
                        if each in offsets
                        else 0
                        for each in places
                    }
        return found

    async def commit_offsets(
        self,
        identity: Identity | None,
        txn_id: TxnId,
        group_id: str,
        member: tuple[str, str | None, int],
        offsets: Sequence[Mapping[str, Any]],
    ) -> None:
        """Offsets of a group that count when the transaction commits, whoever began it. All of
        them, or none.
        """
        wanted = {
            TopicPartition(each["topic"], each["partition"]): Wanted(
                each["offset"], metadata=each.get("metadata", "")
            )
            for each in offsets
        }
        user = "" if identity is None else identity.acting
        await take(self._services.topics.ownership, topic_of_group(group_id))
        with _errors():
            self._check_permitted(identity, group_id, wanted)
            errors = await self._services.transactions.commit_in(
                txn_id, self._principal(identity), group_id, Committer(*member, user), wanted
            )
        for place, code in errors.items():
            if code is not ErrorCode.NONE:
                raise Conflict(f"{place.topic}-{place.partition}: {code.name}", "nothing was done")

    def _check_permitted(
        self,
        identity: Identity | None,
        group_id: str,
        wanted: Mapping[TopicPartition, Wanted],
    ) -> None:
        authorizer, namespace = self._services.authorizer, self._services.names.namespace_name
        names = [partition_name(self._services, *place) for place in wanted]
        if authorizer is None or identity is None:
            return
        if not authorizer.may_use_group(identity, namespace, group_id):
            raise AuthorizationError(f"The group {group_id[:200]!r} needs the permission consume")
        for name in names:
            authorizer.require(identity, Need.CONSUME, Target.of_topic(name), "commit offsets")

    def _principal(self, identity: Identity | None) -> str | None:
        """None: any transaction."""
        roles = self._services.config.super_user_roles
        if identity is None or all(each in roles for each in identity.roles):
            return None
        return identity.acting


async def _shown_here(
    partitions: Iterable[int], work: Callable[[int], Awaitable[Progress]]
) -> list[dict[str, Any]]:
    """Without the partitions of other brokers."""
    found: Answers = {}
    async for each in paced(partitions):
        try:
            found[each] = await work(each)
        except NotServedHere:
            continue
        except REFUSALS as error:
            found[each] = error
    return _shown_all(found)


def _shown_all(answers: Answers) -> list[dict[str, Any]]:
    return [{"partition": part, **_shown(each)} for part, each in sorted(answers.items())]


def _shown(answer: Progress | Exception) -> dict[str, Any]:
    if isinstance(answer, Exception):
        return {"errorCode": error_code(answer), "message": error_message(answer) or ""}
    known = {"startOffset": answer.start_offset, "lag": answer.lag}
    return {name: value for name, value in known.items() if value != UNKNOWN}


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        if error.code in _AGAIN:
            raise ServiceNotReady(str(error)) from error
        if error.code in _MISSING:
            raise NotFound(str(error)) from error
        raise Conflict(str(error), error.code.name) from error
