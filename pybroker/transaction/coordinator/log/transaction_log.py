"""Where a coordinator's records are stored.

The log is the managed ledger `pulsar/system/persistent/__transaction_log_<tc>`. Its entries are in
the broker's own format (`log_records`) or in Apache Pulsar's (`pulsar_log`): the composition root
chooses the format to write, and both are read. Outcomes are dense and outlive many snapshots, so
they are not in the log: each chunk has a metadata key.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from managed_ledger.errors import CorruptStorage
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import BARE, MetadataStore
from pybroker.base.names import SYSTEM_NAMESPACE, TRANSACTION_LOG_PREFIX
from pybroker.transaction.coordinator.log.group_records import GroupMembers
from pybroker.transaction.coordinator.log.log_records import (
    decode_entry,
    encode_entry,
    is_own_format,
)
from pybroker.transaction.coordinator.log.records import (
    AddPartitions,
    AddSubscriptions,
    IdsUsed,
    Record,
)
from pybroker.transaction.coordinator.metadata_store import TransactionMetadataStore
from pybroker.transaction.snapshot_log import Done, InOrder, SnapshotLog

if TYPE_CHECKING:
    from pybroker.transaction.coordinator.log.pulsar_log import Decoded, PulsarLog

_CURSOR: Final = "transaction.subscription"
_MAX_LOCAL_TXN_ID: Final = "max_local_txn_id"  # a property of Apache Pulsar's logs


def log_name(coordinator_id: int | str) -> str:
    return f"{SYSTEM_NAMESPACE}/persistent/{TRANSACTION_LOG_PREFIX}{coordinator_id}"


class TransactionLog:
    """One coordinator's log and outcome chunks."""

    def __init__(
        self,
        coordinator_id: int,
        log: SnapshotLog[Record],
        metadata: MetadataStore,
        pulsar: "PulsarLog | None" = None,
    ) -> None:
        self._log = log
        self._source = f"The transaction log {log.name}"
        self._pulsar = pulsar
        self._metadata = metadata
        self.appended = 0  # records, since it was opened
        self._chunks = f"transaction-outcomes/{coordinator_id}/"

    @classmethod
    async def open(
        cls,
        coordinator_id: int,
        factory: ManagedLedgerFactory,
        metadata: MetadataStore,
        pulsar: "PulsarLog | None" = None,
    ) -> "TransactionLog":
        """With `pulsar`, the log is written in Apache Pulsar's format, for its brokers to read."""
        name = log_name(coordinator_id)
        if pulsar is None:
            log = await SnapshotLog.open(factory, name, _CURSOR, encode_entry)
        else:
            log = await SnapshotLog.open(factory, name, _CURSOR, pulsar.encode, BARE)
        return cls(coordinator_id, log, metadata, pulsar)

    def on_failure(self, failed: Callable[[Exception], None]) -> None:
        """Set the callback for failed appends."""
        self._log.on_failure = failed

    async def replay(self, store: TransactionMetadataStore) -> None:
        for key in self._metadata.keys(self._chunks):
            stored = self._metadata.get(key)
            assert stored is not None
            store.outcomes.restore_chunk(int(key.rpartition("/")[2]), stored.value)

        highest_id = -1

        def apply(entry: bytes) -> int:
            nonlocal highest_id
            records = self._decode(entry)
            if isinstance(records, list):
                found = records
            else:
                found, highest_id = records.records, max(highest_id, records.highest_id)
            for record in found:
                store.apply(record)
            return len(found)

        with store.replaying():
            await self._log.replay(apply)
            if _MAX_LOCAL_TXN_ID in self._log.properties:
                highest_id = max(highest_id, await self._highest_id_behind_the_cursor())
            if highest_id > store.highest_id:
                store.apply(IdsUsed(highest_id, store.low_watermark))
        if self._pulsar is not None:
            await self._serve_pulsar(self._pulsar, store.highest_id)

    def _decode(self, entry: bytes) -> "list[Record] | Decoded":
        if is_own_format(entry):
            return decode_entry(entry, self._source)
        from pybroker.transaction.coordinator.log.pulsar_log import decode_pulsar

        return decode_pulsar(entry, self._source)

    async def _highest_id_behind_the_cursor(self) -> int:
        """The highest id found outside the replayed entries. Apache Pulsar deletes the entries of
        ended transactions one by one, so the highest id may be only in a property or in the last
        entry, which may be one of the deleted ones.
        """
        text = self._log.properties[_MAX_LOCAL_TXN_ID]
        try:
            highest_id = int(text)
        except ValueError:
            raise CorruptStorage(
                f"{self._log.name}: the property {_MAX_LOCAL_TXN_ID} is {text!r}, not a number"
            ) from None
        last = await self._log.last_entry()
        decoded = None if last is None else self._decode(last)
        if decoded is None or isinstance(decoded, list):
            return highest_id
        return max(highest_id, decoded.highest_id)

    async def _serve_pulsar(self, pulsar: "PulsarLog", highest_id: int) -> None:
        """Keep the property up to date: until the first append there is no last entry, and Apache's
        broker reads only the property.
        """
        pulsar.highest_id = max(pulsar.highest_id, highest_id)
        if highest_id >= 0 and self._log.properties.get(_MAX_LOCAL_TXN_ID) != str(highest_id):
            await self._log.set_property(_MAX_LOCAL_TXN_ID, str(highest_id))
        self._log.intercept(pulsar)

    def append(self, record: Record, done: Done, in_order: InOrder | None = None) -> None:
        """Queue the record now; `done` is called when it is durable, or with the error. What the
        `in_order` callback appends to other logs is durable only if the record is: see SnapshotLog.
        """
        self.appended += 1
        self._log.append(record, done, in_order)

    def append_without_hurry(self, record: Record, done: Done) -> None:
        """Like `append`, for a record that nobody waits for: it is written with the next record, or
        after a while.
        """
        self.appended += 1
        self._log.append_without_hurry(record, done)

    def abandon(self, error: Exception) -> None:
        """After a failed append: drop and fail the records that depend on it."""
        self._log.abandon(error)

    def append_together(self, records: Sequence[Record], done: Done) -> None:
        """Like `append`, for several records in one entry: durable together or not at all."""
        self.appended += len(records)
        self._log.append_together(records, done)

    @property
    def records_since_snapshot(self) -> int:
        return self._log.records_since_snapshot

    async def snapshot(self, store: TransactionMetadataStore) -> None:
        """Make replay begin at the current state of `store`."""

        async def write_outcomes() -> None:
            # Not before: if a transaction ends while the snapshot is written, its owner may be in
            # no piece of it.
            changed, expired = store.outcomes.take_changes()
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
