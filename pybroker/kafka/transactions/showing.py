"""The transactions of Kafka's producers for ListTransactions and DescribeTransactions.

The names of the states are Kafka's, for whose tools they are.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from pybroker.base.errors import TransactionCoordinatorNotFound
from pybroker.base.names import KAFKA_OFFSETS, TopicName
from pybroker.kafka.coordinator.group_coordinator import GroupCoordinator
from pybroker.kafka.names import KafkaNames
from pybroker.kafka.offsets.records import TopicPartition
from pybroker.kafka.transactions.values import StoredProducer
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId
from pybroker.transaction.txn_status import TxnAction, TxnStatus

_OF_STATUS: Final = {
    TxnStatus.OPEN: "Ongoing",
    TxnStatus.PREPARED: "Ongoing",
    TxnStatus.COMMITTING: "PrepareCommit",
    TxnStatus.ABORTING: "PrepareAbort",
    TxnStatus.COMMITTED: "CompleteCommit",
    TxnStatus.ABORTED: "CompleteAbort",
}
_OF_ACTION: Final = {
    TxnAction.COMMIT: "CompleteCommit",
    TxnAction.ABORT: "CompleteAbort",
    None: "Empty",
}
STATES: Final = frozenset((*_OF_STATUS.values(), *_OF_ACTION.values()))
_OFFSETS_TOPIC: Final = "__consumer_offsets"  # Kafka's name for where offsets are


class Shown(NamedTuple):
    id: TransactionalId
    stored: StoredProducer
    state: str
    live: TransactionMetadata | None

    @property
    def started_ms(self) -> int:
        """-1 if there is no transaction."""
        return -1 if self.live is None else self.live.opened_at_ms


async def shown(groups: GroupCoordinator, coordinators: Coordinators) -> list[Shown]:
    """All transactional producers that this broker coordinates. Raises KafkaError."""
    return [
        _shown(id, stored, coordinators)
        for shard in await groups.shards()
        for id, stored in shard.log.state.producers.items()
    ]


def _shown(id: TransactionalId, stored: StoredProducer, coordinators: Coordinators) -> Shown:
    txn_id = stored.txn_id
    live = None if txn_id is None else coordinators.begun(txn_id)
    if txn_id is None:
        return Shown(id, stored, _OF_ACTION[stored.last_action], None)
    try:
        status = coordinators.status(txn_id)
    except TransactionCoordinatorNotFound:
        status = TxnStatus.OPEN  # nothing else is known at present
    state = "CompleteAbort" if status is None else _OF_STATUS[status]
    return Shown(id, stored, state, live)


def partitions_of(live: TransactionMetadata, names: KafkaNames) -> list[TopicPartition]:
    """The partitions that the transaction writes to, by Kafka's names."""
    places = [_place(TopicName.parse(each), names) for each in live.partitions]
    logs = {topic for topic, _ in live.subscriptions if topic.startswith(KAFKA_OFFSETS)}
    of_groups = [TopicPartition(_OFFSETS_TOPIC, TopicName.parse(each).partition) for each in logs]
    return [each for each in places if each is not None] + of_groups


def _place(topic: TopicName, names: KafkaNames) -> TopicPartition | None:
    name = names.shown(topic.partitioned_name)
    return None if name is None else TopicPartition(name, max(0, topic.partition))


def by_topic(places: Sequence[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        found.setdefault(topic, []).append(partition)
    return found
