"""The offsets of Kafka's groups, even in a broker that does not serve Kafka's clients at present: a
transaction may end in a group. Loaded by the first need.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from managed_ledger.factory import ManagedLedgerFactory
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import KAFKA_OFFSETS_PREFIX, SYSTEM_NAMESPACE, TopicName, TxnId
from pybroker.broker.brokers.ownership import Bundle
from pybroker.broker.topics import Topics
from pybroker.transaction.txn_status import TransactionOutcomes, TxnAction

if TYPE_CHECKING:
    from pybroker.kafka.offsets.logs import OffsetsLogs


# Receives the name that Kafka's clients use, and a partition or None: the whole topic.
ForgetOnOthers = Callable[[str, int | None], Awaitable[None]]


class LazyOffsets:
    def __init__(
        self,
        ledgers: ManagedLedgerFactory,
        outcomes: TransactionOutcomes,
        topics: Topics,
        config: BrokerConfig,
    ) -> None:
        self._ledgers = ledgers
        self._namespace = f"{config.kafka_tenant}/{config.kafka_namespace}"
        self._outcomes = outcomes
        self._ownership = topics.ownership
        self._tenants = topics.tenants
        self._logs: OffsetsLogs | None = None
        # In a cluster: forgets what groups of other brokers have committed; see forget_topic.
        self.forget_on_others: ForgetOnOthers | None = None
        topics.deletions.also_forget(self.forget_topic)

    def logs(self) -> "OffsetsLogs":
        if self._logs is None:
            from pybroker.kafka.offsets.logs import OffsetsLogs

            self._logs = OffsetsLogs(self._ledgers, self._outcomes, self._ownership)
        return self._logs

    def end(
        self, txn_id: TxnId, log: str, group: str, action: TxnAction, not_later: bool
    ) -> Awaitable[object] | None:
        """Implements EndInGroup of the participants."""
        return self.logs().end_on_subscription(txn_id, log, group, action, not_later)

    async def forget_topic(self, topic: TopicName) -> None:
        """Called when a topic or partition is deleted. Raises StorageFull; in a cluster
        ServiceNotReady, too.
        """
        if topic.persistent and topic.namespace_name == self._namespace and self.begun():
            name = topic.partitioned_name.local
            partition = topic.partition if topic.partition >= 0 else None
            await self.forget_here(name, partition)
            part_of_larger = topic.partition >= 0 and self._tenants.is_doomed(topic)
            if self.forget_on_others is not None and not part_of_larger:
                await self.forget_on_others(name, partition)

    async def forget_here(self, topic: str, partition: int | None) -> list[int]:
        """Only in the logs that this broker serves, whose numbers it returns. `topic` is the name
        that Kafka's clients use. Raises StorageFull.
        """
        if not self.begun():
            return []
        return sorted(await self.logs().forget_topic(topic, partition))

    def begun(self) -> list[TopicName]:
        """The logs that exist, on any broker, by their names as topics."""
        prefix = f"{SYSTEM_NAMESPACE}/persistent/{KAFKA_OFFSETS_PREFIX}"
        return [TopicName.of_ledger(each) for each in self._ledgers.names(prefix)]

    async def release(self, bundle: Bundle) -> None:
        """Close the logs in a bundle that another broker will serve."""
        if self._logs is not None:
            await self._logs.release(bundle.holds)

    async def close(self) -> None:
        if self._logs is not None:
            await self._logs.close()
