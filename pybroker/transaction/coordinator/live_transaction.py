"""A live transaction, and the records that recreate it for a coordinator's snapshot; the prepared
ones of a coordinator, which wait for their owners to decide.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.ends.timeline import DecidedEnd
from pybroker.transaction.coordinator.log.group_records import Promise, records_of_group
from pybroker.transaction.coordinator.log.records import (
    AddPartitions,
    AddSubscriptions,
    BindSession,
    ChangeStatus,
    NewTransaction,
    Prepare,
    Record,
    SpanNamespace,
)
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef
from pybroker.transaction.txn_status import UNDECIDED, TxnStatus

MAX_NAME_CHARS: Final = 200  # of a prepared transaction
NO_TIMEOUT_MS: Final = 2**53 - 1  # the timeout of a transaction that none ends: KIP-939
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
    prepared: Prepare | None = None  # kept when it is decided
    # No timeout ends it: it was prepared, or may be without the coordinator's knowledge.
    waits_for_owner: bool = False
    group: frozenset[TxnId] = frozenset()  # if it leads: the members on other coordinators
    namespace: str | None = None  # topics and subscriptions there join when touched
    session: SessionRef | None = None  # the session of a transactional id that owns it
    namespaces: dict[str, None] = field(default_factory=dict)  # those of its participants
    # For display, not durable: the client's address and version, its label for the transaction, and
    # the decided end.
    client: tuple[str, str] | None = None
    label: str | None = None
    end: DecidedEnd | None = None
    counts_from_ms: int | None = None  # its timeout, if not from `opened_at_ms` on

    @property
    def participant_count(self) -> int:
        return len(self.partitions) + len(self.subscriptions)

    def left_ms(self, now_ms: int) -> int | None:
        """Until its timeout; None if it has none."""
        if self.waits_for_owner:
            return None
        began_ms = self.opened_at_ms if self.counts_from_ms is None else self.counts_from_ms
        return max(0, began_ms + self.timeout_ms - now_ms)


def count_from(transactions: Iterable[TransactionMetadata], now_ms: int) -> None:
    """Give them their whole time, because another machine's clock said when they began."""
    for each in transactions:
        each.counts_from_ms = now_ms


class PreparedTransactions:
    """Those that are not decided, in the order in which they were prepared. Owners' shares also
    count the open ones that have no timeout.
    """

    def __init__(self) -> None:
        self._transactions: dict[int, TransactionMetadata] = {}
        self._owners: dict[int, str | None] = {}
        self._of: Counter[str] = Counter()  # by owner

    def __len__(self) -> int:
        return len(self._transactions)

    def __contains__(self, local_id: int) -> bool:
        return local_id in self._transactions

    def __iter__(self) -> Iterator[TransactionMetadata]:
        """Of a copy: others may be prepared or decided meanwhile."""
        return iter(list(self._transactions.values()))

    def of(self, owner: str) -> int:
        """How many are the owner's, with the open ones that have no timeout."""
        return self._of[owner]

    def is_counted(self, local_id: int) -> bool:
        return local_id in self._owners

    def add(self, transaction: TransactionMetadata) -> None:
        self._transactions[transaction.txn_id.least] = transaction
        self.count(transaction)

    def count(self, transaction: TransactionMetadata) -> None:
        """In its owner's share: no timeout ends it any more. Idempotent."""
        transaction.waits_for_owner = True
        local_id, owner = transaction.txn_id.least, transaction.owner
        if local_id not in self._owners:
            self._owners[local_id] = owner
            if owner is not None:
                self._of[owner] += 1

    def drop(self, local_id: int) -> None:
        """Idempotent."""
        self._transactions.pop(local_id, None)
        owner = self._owners.pop(local_id, None)
        if owner is not None:
            less(self._of, owner, 1)


def less(counts: Counter[str], key: str, by: int) -> None:
    """A key without a count is no key."""
    counts[key] -= by
    if not counts[key]:
        del counts[key]


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
    if transaction.prepared is not None:
        yield transaction.prepared
    if transaction.status not in UNDECIDED:
        yield ChangeStatus(local_id, transaction.status, transaction.opened_at_ms, reason)
