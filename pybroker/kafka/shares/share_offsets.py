"""Where a share group is on those partitions that this broker serves: the mark-delete position of
its subscription.
"""

from pybroker.broker.subscriptions import isolation
from pybroker.kafka.log.partition_log import PartitionLog
from pybroker.kafka.partition_logs import opened_log
from pybroker.kafka.permissions import Operation
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.shares.acquired import mask
from pybroker.kafka.shares.progress import UNKNOWN, Progress
from pybroker.kafka.shares.share_configs import ShareConfigs


class ShareOffsets:
    """Everything raises KafkaError, PulsarError, ManagedLedgerError; NotServedHere."""

    def __init__(self, services: KafkaServices, group_id: str) -> None:
        self._services = services
        self._group_id = group_id

    async def progress(self, topic: str, partition: int) -> Progress:
        return await self._progress(await self._log(topic, partition))

    async def move(self, topic: str, partition: int, offset: int) -> Progress:
        """Begins anew at `offset`, or at the end of the log that is nearest to it."""
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
            return await self._progress(partition_log)
        messages = run.message_counts[0]
        first = await partition_log.offsets.offset_of(place.position, run.entries[0], messages)
        index = max(0, min(offset - first, messages - 1))
        unacked = mask(index, messages) if index else 0
        await subscription.seek(place.position, unacked, messages if index else 0)
        return await self._progress(partition_log)

    async def delete(self, topic: str, partition: int) -> Progress:
        partition_log = await self._log(topic, partition)
        if self._group_id in partition_log.topic.subscriptions:
            await partition_log.topic.delete_subscription(self._group_id)
        return Progress()

    async def _progress(self, partition_log: PartitionLog) -> Progress:
        subscription = partition_log.topic.subscriptions.get(self._group_id)
        if subscription is None:
            return Progress()
        start = await partition_log.offsets.end_after(subscription.mark_delete_position)
        end, cursor = await partition_log.end_offset(committed_only=True), subscription.cursor
        in_order = cursor.last_acknowledged <= subscription.mark_delete_position
        is_known = in_order and not cursor.partial_batches
        return Progress(start, max(0, end - start) if is_known else UNKNOWN)

    async def _log(self, topic: str, partition: int) -> PartitionLog:
        return await opened_log(self._services, topic, partition, Operation.READ)
