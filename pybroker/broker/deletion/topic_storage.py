"""Everything in the storage that belongs to a topic or a subscription, in one place.

    of a subscription    its pending-ack log; its cursor
    of a topic           the pending-ack logs of its subscriptions; the logs of its compactions; the
                         side log of its transactions; the managed ledger with its cursors; the
                         snapshots of deduplication, of the transaction buffer and of Kafka's
                         idempotent producers
    of a whole           (a partitioned or scalable topic, or one that is no part of any) the
                         schemas; the policies; the number of its partitions; its segments
    of a topic or whole  the permissions on it; the offsets that Kafka's groups have committed

Whatever else is stored for topics or subscriptions must be removed here, too. Each removal may be
repeated, and parts may already be gone.
"""

from collections.abc import Awaitable, Callable, Iterable

from managed_ledger.deletion import all_done
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import KeyAt, MetadataStore
from pybroker.base.names import (
    COMPACTED_LOGS,
    PENDING_ACK_LOGS,
    SCALABLE,
    SIDE_LOGS,
    TopicName,
    belongs_to_a_topic,
    compacted_logs,
    pending_ack_log,
    pending_ack_logs,
    side_log,
    subscription_of_log,
    topic_of_compacted_log,
    topic_of_side_log,
)
from pybroker.broker.compaction.compaction import generation_that_counts
from pybroker.broker.deduplication import snapshot as deduplication_snapshot
from pybroker.broker.namespaces import tenants
from pybroker.broker.namespaces.permissions import Permissions
from pybroker.broker.persistent import kafka_keys
from pybroker.broker.policies.policies import topic_key
from pybroker.broker.schemas import known_versions
from pybroker.transaction.buffer.log_order import buffer_snapshot

# Called before each step; returns the decision to delete, as a key and its version. The storage
# compares them once more, because this broker may not know yet that the decision is gone. Raises
# BadVersion if nothing more may be removed.
Decided = Callable[[], KeyAt]

_SNAPSHOTS = (deduplication_snapshot, buffer_snapshot, kafka_keys)


class TopicStorage:
    def __init__(
        self, factory: ManagedLedgerFactory, metadata: MetadataStore, permissions: Permissions
    ) -> None:
        self._factory = factory
        self._metadata = metadata
        self._permissions = permissions
        # Forgets what Kafka's groups have committed of a topic. Raises ManagedLedgerError.
        self.forget_offsets: Callable[[TopicName], Awaitable[None]] | None = None

    async def remove_subscription(
        self, topic: TopicName, subscription: str, check: Decided
    ) -> None:
        await self._factory.delete(pending_ack_log(topic, subscription), check())
        await self._factory.delete_cursor(topic.ledger_name, subscription, check())

    async def remove_topic(self, topic: TopicName, check: Decided) -> None:
        """Removes what belongs to one topic, or to one partition."""
        await self._factory.delete_all(pending_ack_logs(topic), check())
        await self._factory.delete_all(compacted_logs(topic), check())
        await self._factory.delete(side_log(topic.ledger_name), check())
        # Snapshots may be stored below the managed ledger, which can only be deleted after them.
        await self._remove_snapshots(topic.ledger_name, check())
        await self._factory.delete(topic.ledger_name, check())

    async def remove_shared(self, topic: TopicName, check: Decided) -> None:
        """Removes what exists once per topic, with or without partitions."""
        check()
        await self._permissions.forget_topic(topic)
        if topic.partitioned_name == topic:
            schemas = known_versions.schema_keys(self._metadata, topic)
            await self._remove_keys(schemas, check())
            decision = check()
            if self._metadata.get(topic_key(topic)) is not None:  # most have none
                await self._remove_keys([topic_key(topic)], decision)
            await self._remove_keys([tenants.partitions_key(topic)], check())
        if topic.domain == SCALABLE:
            await self._remove_keys([tenants.scalable_key(topic)], check())
            announced = tenants.migration_key(topic._replace(domain="persistent"))
            if self._metadata.get(announced) is not None:
                await self._remove_keys([announced], check())

    async def remove_offsets(self, topic: TopicName, check: Decided) -> None:
        """The last step: nobody commits any for a topic that is gone. Raises StorageFull: it frees
        no space, and has to write.
        """
        if self.forget_offsets is not None:
            check()
            await self.forget_offsets(topic)

    async def remove_strays(self) -> None:
        """Removes logs and snapshots whose topic or subscription no longer exists (a reader's, for
        instance, or what deletions of earlier versions left), and compacted logs that no topic
        refers to. Runs before anything is opened: a log that is still being created looks like a
        stray.
        """
        for log in filter(belongs_to_a_topic, self._factory.names(COMPACTED_LOGS)):
            ledger_name, generation = topic_of_compacted_log(log)
            if generation != generation_that_counts(self._factory.properties(ledger_name)):
                await self._factory.delete(log)
        for log in filter(belongs_to_a_topic, self._factory.names(SIDE_LOGS)):
            if not self._factory.exists(topic_of_side_log(log)):
                await self._factory.delete(log)
        for log in filter(belongs_to_a_topic, self._factory.names(PENDING_ACK_LOGS)):
            if not self._factory.has_cursor(*subscription_of_log(log)):
                await self._factory.delete(log)
        for module in _SNAPSHOTS:
            for name in module.ledgers_with_snapshots(self._metadata):
                if not self._factory.exists(name):
                    await self._remove_snapshots(name, None)

    async def _remove_snapshots(self, ledger_name: str, decision: KeyAt | None) -> None:
        # Deduplication comes first: its key is always deleted, after snapshot writes in flight. So
        # the buffer's keys, listed afterwards, include those of its last write.
        for module in _SNAPSHOTS:
            await self._remove_keys(module.snapshot_keys(self._metadata, ledger_name), decision)

    async def _remove_keys(self, keys: Iterable[str], decision: KeyAt | None) -> None:
        await all_done(self._metadata.delete(key, only_while=decision) for key in keys)
