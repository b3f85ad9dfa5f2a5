"""Groups for the admin API: who is in them, how far behind they are; offsets in any transaction."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import AuthorizationError, PulsarError, ServiceNotReady
from pybroker.base.names import TxnId
from pybroker.base.runtime import Pace
from pybroker.broker.brokers.ownership import take
from pybroker.broker.namespaces.tenants import Conflict, NotFound
from pybroker.kafka.coordinator.committing import Committer, Wanted
from pybroker.kafka.coordinator.describing import Listed, list_groups
from pybroker.kafka.coordinator.shard import Shard
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.log.partition_log import partition_log
from pybroker.kafka.offsets.logs import topic_of_group
from pybroker.kafka.offsets.records import TopicPartition
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.topics import partition_name, partition_topic
from pybroker.security.authorization import Need, Target
from pybroker.security.identity import Identity

_AGAIN: Final = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)
_OFFSETS_A_TURN: Final = 50


class KafkaForAdmin:
    """Implements KafkaGroups of the admin API. Everything raises PulsarError."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services

    async def groups(self) -> list[dict[str, Any]]:
        with _errors():
            listed = await list_groups(self._services.groups)
            return [await self._group(each) for each in listed]

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
        classic = shard.groups.get(listed.group_id)
        consumers = shard.consumers.groups.get(listed.group_id)
        members = len(classic.members) if classic else len(consumers.members) if consumers else 0
        committed = len(shard.log.state.of(listed.group_id))
        return {
            "group": listed.group_id,
            "kind": listed.kind,
            "state": listed.state,
            "members": members,
            "committedPartitions": committed,
        }

    async def _offsets(self, shard: Shard, group_id: str) -> list[dict[str, Any]]:
        found, pace = [], Pace(_OFFSETS_A_TURN)
        for place, committed in sorted(shard.log.state.of(group_id).items()):
            await pace.step()
            end = await self._end_offset(place)
            offset = {"topic": place.topic, "partition": place.partition}
            offset |= {"committedOffset": committed.offset, "metadata": committed.metadata}
            if end is not None:
                offset |= {"endOffset": end, "lag": max(0, end - committed.offset)}
            found.append(offset)
        return found

    async def _end_offset(self, place: TopicPartition) -> int | None:
        """None if the partition does not exist any more, or another broker has it."""
        with suppress(KafkaError, PulsarError, ManagedLedgerError):
            topic = await partition_topic(self._services, place.topic, place.partition)
            return await (await partition_log(topic).opened()).end_offset(committed_only=True)
        return None

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
        await take(self._services.topics.ownership, topic_of_group(group_id))
        with _errors():
            self._check_permitted(identity, group_id, wanted)
            errors = await self._services.transactions.commit_in(
                txn_id, self._principal(identity), group_id, Committer(*member), wanted
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


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        if error.code in _AGAIN:
            raise ServiceNotReady(str(error)) from error
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise NotFound(str(error)) from error
        raise Conflict(str(error), error.code.name) from error
