"""Where a share group is on a partition: the mark-delete position of its subscription.

Only partitions that this broker serves: others answer NOT_LEADER_OR_FOLLOWER.
"""

import logging
from typing import Final, NamedTuple

from pybroker.broker.subscriptions import isolation
from pybroker.kafka.coordinator.shard import Shard, non_empty
from pybroker.kafka.errors import REFUSALS
from pybroker.kafka.groups.share_group import ShareGroup, topics_in
from pybroker.kafka.groups.values import GroupKind
from pybroker.kafka.log.partition_log import PartitionLog
from pybroker.kafka.partition_logs import partition_log_of
from pybroker.kafka.permissions import Operation
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Session
from pybroker.kafka.shares.acquired import mask
from pybroker.kafka.shares.share_configs import ShareConfigs
from pybroker.kafka.topics import partition_count

log = logging.getLogger(__name__)

UNKNOWN: Final = -1  # an offset or a lag


class Progress(NamedTuple):
    """Where a group is. The lag is in records, UNKNOWN behind records that were acknowledged out
    of order.
    """

    start_offset: int = UNKNOWN
    lag: int = UNKNOWN


class GroupOffsets:
    def __init__(self, services: KafkaServices, session: Session, group_id: str) -> None:
        self._services = services
        self._session = session
        self._group_id = group_id

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
        """All that the group ever subscribed to. Raises KafkaError."""
        shard = await self.shard()
        group = shard.shares.groups.get(self._group_id)
        if isinstance(group, ShareGroup):
            return sorted(group.known_topics)
        return sorted(topics_in(shard.log.state.groups[self._group_id].protocol))

    def partitions(self, topic: str) -> list[int]:
        return list(range(partition_count(self._services, self._services.names.topic(topic))))

    async def progress(self, topic: str, partition: int) -> Progress:
        """Raises KafkaError, PulsarError, ManagedLedgerError."""
        partition_log = await self._log(topic, partition)
        subscription = partition_log.topic.subscriptions.get(self._group_id)
        if subscription is None:
            return Progress()
        start = await partition_log.offsets.end_after(subscription.mark_delete_position)
        end, cursor = await partition_log.end_offset(committed_only=True), subscription.cursor
        in_order = cursor.last_acknowledged <= subscription.mark_delete_position
        is_known = in_order and not cursor.partial_batches
        return Progress(start, max(0, end - start) if is_known else UNKNOWN)

    async def move(self, topic: str, partition: int, offset: int) -> None:
        """Begins anew at `offset`, or at the end of the log that is nearest to it. Raises
        KafkaError, PulsarError, ManagedLedgerError.
        """
        partition_log = await self._log(topic, partition)
        offset = max(
            await partition_log.offsets.start(), min(offset, await partition_log.offsets.end())
        )
        place = await partition_log.offsets.find(offset)
        configs = ShareConfigs.of(self._services.group_configs.of(self._group_id))
        properties = {isolation.PROPERTY: configs.isolation_level}  # if it begins with this
        subscription = await partition_log.topic.subscription(
            self._group_id, place.position.before, properties, create=True
        )
        run = await partition_log.topic.ledger.read(place.position, place.position, 1, 1)
        if run is None:  # at the end
            await subscription.seek(place.position)
            return
        messages = run.message_counts[0]
        first = await partition_log.offsets.offset_of(place.position, run.entries[0], messages)
        index = max(0, min(offset - first, messages - 1))
        unacked = mask(index, messages) if index else 0
        await subscription.seek(place.position, unacked, messages if index else 0)

    async def delete_all(self) -> None:
        """Before the group is deleted, which must have no members. What other brokers serve stays.
        Raises KafkaError.
        """
        await self.without_members()
        for topic in await self.topics():
            try:
                await self.delete(topic)
            except REFUSALS as error:
                log.warning(
                    "The subscription %s of %s stays: %s. Delete it with "
                    "pybroker admin topics unsubscribe", self._group_id, topic, error,
                )  # fmt: skip

    async def delete(self, topic: str) -> None:
        """The subscriptions of all partitions. Raises KafkaError, PulsarError."""
        for partition in self.partitions(topic):
            partition_log = await self._log(topic, partition)
            if self._group_id in partition_log.topic.subscriptions:
                await partition_log.topic.delete_subscription(self._group_id)

    async def _log(self, topic: str, partition: int) -> PartitionLog:
        return await partition_log_of(
            self._services, self._session, topic, partition, Operation.READ
        )
