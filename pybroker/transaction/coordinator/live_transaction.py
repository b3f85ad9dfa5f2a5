"""A live transaction, and the records that recreate it for a coordinator's snapshot."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.group_records import Promise, records_of_group
from pybroker.transaction.coordinator.records import (
    AddPartitions,
    AddSubscriptions,
    BindSession,
    ChangeStatus,
    NewTransaction,
    Record,
    SpanNamespace,
)
from pybroker.transaction.coordinator.timeline import DecidedEnd
from pybroker.transaction.coordinator.transactional_ids import SessionRef
from pybroker.transaction.txn_status import TxnStatus

_PARTICIPANTS_PER_RECORD: Final = 500


@dataclass(slots=True)
class TransactionMetadata:
    """A live transaction. The dicts are ordered sets of participants; each value is the time in ms
    when the participant was added, or None if that was before a restart.
    """

    txn_id: TxnId
    timeout_ms: int
    opened_at_ms: int
    owner: str | None
    status: TxnStatus = TxnStatus.OPEN
    partitions: dict[str, int | None] = field(default_factory=dict)
    subscriptions: dict[tuple[str, str], int | None] = field(default_factory=dict)
    promised_to: TxnId | None = None  # the leader; None if free
    group: frozenset[TxnId] = frozenset()  # if it leads: the members on other coordinators
    namespace: str | None = None  # topics and subscriptions there join when touched
    session: SessionRef | None = None  # the session of a transactional id that owns it
    namespaces: dict[str, None] = field(default_factory=dict)  # those of its participants
    # For display, not durable: the client's address and version, and the decided end.
    client: tuple[str, str] | None = None
    end: DecidedEnd | None = None

    @property
    def participant_count(self) -> int:
        return len(self.partitions) + len(self.subscriptions)


def records_of(transaction: TransactionMetadata, reason: str = "") -> Iterator[Record]:
    local_id = transaction.txn_id.least
    yield NewTransaction(
        local_id, transaction.timeout_ms, transaction.opened_at_ms, transaction.owner
    )
    if transaction.namespace is not None:
        yield SpanNamespace(local_id, transaction.namespace)
    if transaction.session is not None:
        yield BindSession(local_id, transaction.session)
    if transaction.promised_to is not None:
        yield Promise(local_id, transaction.promised_to)
    yield from records_of_group(local_id, sorted(transaction.group))
    topics, subscriptions = tuple(transaction.partitions), tuple(transaction.subscriptions)
    for at in range(0, len(topics), _PARTICIPANTS_PER_RECORD):
        yield AddPartitions(local_id, topics[at : at + _PARTICIPANTS_PER_RECORD])
    for at in range(0, len(subscriptions), _PARTICIPANTS_PER_RECORD):
        yield AddSubscriptions(local_id, subscriptions[at : at + _PARTICIPANTS_PER_RECORD])
    if transaction.status is not TxnStatus.OPEN:
        yield ChangeStatus(local_id, transaction.status, transaction.opened_at_ms, reason)
