"""A coordinator's records as bytes, and where they are stored.

The log is the managed ledger `pulsar/system/persistent/__transaction_log_<tc>`. An entry is a
format byte, a count and that many records: an operation, then its data. Outcomes are dense and
outlive many snapshots, so they are not in the log: one metadata key per chunk.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Final

from managed_ledger.codec import Reader, Writer
from managed_ledger.errors import CorruptStorage
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.names import SYSTEM_NAMESPACE, TRANSACTION_LOG_PREFIX
from pybroker.transaction.coordinator.group_records import (
    GroupMembers,
    Promise,
    decode_members,
    decode_promise,
    encode_members,
    encode_promise,
)
from pybroker.transaction.coordinator.metadata_store import (
    AddPartitions,
    AddSubscriptions,
    BindSession,
    ChangeStatus,
    IdsUsed,
    NewTransaction,
    Record,
    SpanNamespace,
    TransactionMetadataStore,
)
from pybroker.transaction.coordinator.outcome_window import OutcomeMark
from pybroker.transaction.coordinator.transactional_ids import SessionRef, TransactionalId
from pybroker.transaction.snapshot_log import Done, InOrder, SnapshotLog
from pybroker.transaction.txn_status import TxnStatus

_FORMAT: Final = 1
# The format of an entry with newer kinds of records: versions that do not know them would misread
# the entry, so they must refuse it.
_FORMAT_WITH_LATER_KINDS: Final = 2
_LATER_KINDS: Final = frozenset((BindSession, SpanNamespace, Promise, GroupMembers))
_CURSOR: Final = "transaction.subscription"


class _Operation(enum.IntEnum):
    NEW = 0
    PARTITIONS = 1
    SUBSCRIPTIONS = 2
    STATUS = 3
    IDS = 4
    MARK = 5
    STATUS_BECAUSE = 20
    NAMESPACE = 30
    PROMISE = 31
    GROUP = 32
    SESSION = 40


def log_name(coordinator_id: int | str) -> str:
    return f"{SYSTEM_NAMESPACE}/persistent/{TRANSACTION_LOG_PREFIX}{coordinator_id}"


def encode_entry(records: Sequence[Record]) -> bytes:
    out = Writer()
    has_later = any(map(_is_of_later_kind, records))
    out.number(_FORMAT_WITH_LATER_KINDS if has_later else _FORMAT)
    out.number(len(records))
    for record in records:
        _encode(record, out)
    return out.getvalue()


def _is_of_later_kind(record: Record) -> bool:
    if isinstance(record, ChangeStatus):
        return record.reason != ""
    return type(record) in _LATER_KINDS


def _encode(record: Record, out: Writer) -> None:
    match record:  # the frequent ones first
        case NewTransaction():
            out.numbers((_Operation.NEW, record.local_id, record.timeout_ms, record.opened_at_ms))
            out.number(record.owner is not None)
            out.text(record.owner or "")
        case AddPartitions(local_id, topics):
            out.numbers((_Operation.PARTITIONS, local_id, len(topics)))
            for topic in topics:
                out.text(topic)
        case AddSubscriptions(local_id, subscriptions):
            out.numbers((_Operation.SUBSCRIPTIONS, local_id, len(subscriptions)))
            for topic, subscription in subscriptions:
                out.text(topic)
                out.text(subscription)
        case ChangeStatus(local_id, status, at_ms, reason):
            operation = _Operation.STATUS_BECAUSE if reason else _Operation.STATUS
            out.numbers((operation, local_id, status, at_ms))
            if reason:
                out.text(reason)
        case SpanNamespace(local_id, namespace):
            out.numbers((_Operation.NAMESPACE, local_id))
            out.text(namespace)
        case Promise():
            out.number(_Operation.PROMISE)
            encode_promise(record, out)
        case GroupMembers():
            out.number(_Operation.GROUP)
            encode_members(record, out)
        case IdsUsed(highest_id, low_watermark):  # both may be -1
            out.numbers((_Operation.IDS, highest_id + 1, low_watermark + 1))
        case OutcomeMark(at_ms, watermark):
            out.numbers((_Operation.MARK, at_ms, watermark + 1))
        case BindSession(local_id, ((owner, name), epoch)):
            out.numbers((_Operation.SESSION, local_id, epoch, owner is not None))
            out.text(owner or "")
            out.text(name)


def decode_entry(entry: bytes, source: str) -> list[Record]:
    """Raises CorruptStorage."""
    data = Reader(entry, source)
    has_later = entry[:1] == bytes([_FORMAT_WITH_LATER_KINDS])
    data.version(_FORMAT_WITH_LATER_KINDS if has_later else _FORMAT)
    return [_decode(data, source) for _ in range(data.number())]


def _decode(data: Reader, source: str) -> Record:
    match data.number():
        case _Operation.NEW:
            local_id, timeout_ms, opened_at_ms, owned = data.numbers(4)
            owner = data.text()
            return NewTransaction(local_id, timeout_ms, opened_at_ms, owner if owned else None)
        case _Operation.PARTITIONS:
            local_id, count = data.numbers(2)
            return AddPartitions(local_id, tuple(data.text() for _ in range(count)))
        case _Operation.SUBSCRIPTIONS:
            local_id, count = data.numbers(2)
            pairs = tuple((data.text(), data.text()) for _ in range(count))
            return AddSubscriptions(local_id, pairs)
        case _Operation.STATUS:
            local_id, status, at_ms = data.numbers(3)
            return ChangeStatus(local_id, TxnStatus(status), at_ms)
        case _Operation.NAMESPACE:
            return SpanNamespace(data.number(), data.text())
        case _Operation.PROMISE:
            return decode_promise(data)
        case _Operation.GROUP:
            return decode_members(data)
        case _Operation.IDS:
            return IdsUsed(data.number() - 1, data.number() - 1)
        case _Operation.SESSION:
            local_id, epoch, owned = data.number(), data.number(), data.number()
            owner, name = data.text(), data.text()
            whose = TransactionalId(owner if owned else None, name)
            return BindSession(local_id, SessionRef(whose, epoch))
        case _Operation.MARK:
            return OutcomeMark(data.number(), data.number() - 1)
        case _Operation.STATUS_BECAUSE:
            local_id, status, at_ms = data.numbers(3)
            return ChangeStatus(local_id, TxnStatus(status), at_ms, data.text())
        case kind:
            raise CorruptStorage(
                f"{source} has a record of kind {kind}, which this version does not know: run the "
                "version that wrote it"
            )


class TransactionLog:
    """One coordinator's log and outcome chunks."""

    def __init__(
        self, coordinator_id: int, log: SnapshotLog[Record], metadata: MetadataStore
    ) -> None:
        self._log = log
        self._metadata = metadata
        self.appended = 0  # records, since it was opened
        self._chunks = f"transaction-outcomes/{coordinator_id}/"

    @classmethod
    async def open(
        cls, coordinator_id: int, factory: ManagedLedgerFactory, metadata: MetadataStore
    ) -> "TransactionLog":
        log = await SnapshotLog.open(factory, log_name(coordinator_id), _CURSOR, encode_entry)
        return cls(coordinator_id, log, metadata)

    def on_failure(self, failed: Callable[[Exception], None]) -> None:
        """Set the callback for failed appends."""
        self._log.on_failure = failed

    async def replay(self, store: TransactionMetadataStore) -> None:
        for key in self._metadata.keys(self._chunks):
            stored = self._metadata.get(key)
            assert stored is not None
            store.outcomes.restore_chunk(int(key.rpartition("/")[2]), stored.value)

        def apply(entry: bytes) -> int:
            records = decode_entry(entry, f"The transaction log {self._log.name}")
            for record in records:
                store.apply(record)
            return len(records)

        with store.replaying():
            await self._log.replay(apply)

    def append(self, record: Record, done: Done, in_order: InOrder | None = None) -> None:
        """Queue it now; `done` is called when it is durable, or with the error. What the `in_order`
        callback appends to other logs is durable only if this is; see SnapshotLog.
        """
        self.appended += 1
        self._log.append(record, done, in_order)

    def append_without_hurry(self, record: Record, done: Done) -> None:
        """As `append`, when nobody waits for the record: it is written with the next one."""
        self.appended += 1
        self._log.append_without_hurry(record, done)

    def abandon(self, error: Exception) -> None:
        """After a failure: write nothing that was decided on top of it, and fail what waits."""
        self._log.abandon(error)

    def append_together(self, records: Sequence[Record], done: Done) -> None:
        """As `append`, in one entry: durable together or not at all."""
        self.appended += len(records)
        self._log.append_together(records, done)

    @property
    def records_since_snapshot(self) -> int:
        return self._log.records_since_snapshot

    async def snapshot(self, store: TransactionMetadataStore) -> None:
        """Make replay begin at the current state of `store`."""
        changed, expired = store.outcomes.take_changes()

        async def write_outcomes() -> None:
            for number, chunk in changed.items():
                await self._metadata.put(f"{self._chunks}{number}", chunk)
            for number in expired:
                await self._metadata.delete(f"{self._chunks}{number}")

        await self._log.replace_past(store.snapshot(), _weight, write_outcomes)

    async def close(self) -> None:
        await self._log.close()


def _weight(record: Record) -> int:
    match record:
        case AddPartitions(_, topics):
            return len(topics)
        case AddSubscriptions(_, subscriptions):
            return len(subscriptions)
        case GroupMembers(_, members):
            return len(members)
    return 1
