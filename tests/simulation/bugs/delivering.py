"""Wrong dispatch, pending acknowledgements and cursors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from managed_ledger.ack_set import AckSet
from managed_ledger.cursor import ManagedCursor
from pybroker.broker.dispatch import delayed
from pybroker.broker.dispatch.delayed import DelayPolicy, UndelayedReader
from pybroker.broker.dispatch.delivery import by_ledger
from pybroker.broker.dispatch.key_shared import KeySharedDispatcher
from pybroker.broker.dispatch.left_out import LeftOut
from pybroker.broker.dispatch.redelivery import RedeliveryQueue
from pybroker.broker.persistent import publish_time
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.client.consuming.acks import AckGroup, all_bits
from pybroker.transaction.pending_acks.acks_of_transaction import AcksOfTransaction
from pybroker.transaction.pending_acks.pending_ack import PendingAcks
from pybroker.transaction.pending_acks.records import AckRecord


@contextmanager
def entry_skipped_after_redelivery() -> Iterator[None]:
    """If several entries return at once, the last one is lost."""
    right = RedeliveryQueue.add

    def add(self: RedeliveryQueue, entries: Any) -> Any:
        found = [(ledger_id, entry_id) for ledger_id, ids in entries.items() for entry_id in ids]
        return right(self, by_ledger(found[:-1] if len(found) > 1 else found))

    with patch.object(RedeliveryQueue, "add", add):
        yield


@contextmanager
def unread_counts_as_unwanted() -> Iterator[None]:
    """If no entry of a read is wanted, the rest of the redelivery is lost."""

    def remove(self: RedeliveryQueue, ledger_id: int, run: Any) -> int:
        self._remove(ledger_id, run)
        return len(run)

    with patch.object(RedeliveryQueue, "_remove_unwanted", remove):
        yield


@contextmanager
def key_given_away_in_flight() -> Iterator[None]:
    """A key's new owner gets its messages while the former owner still holds earlier ones."""
    with patch.object(KeySharedDispatcher, "_is_draining", lambda *_: False):
        yield


@contextmanager
def delayed_comes_early() -> Iterator[None]:
    """Delivery times are rounded down to a tick."""

    def rounded_down(self: DelayPolicy, deliver_at: int) -> int:
        return deliver_at // self.tick_ms * self.tick_ms

    with patch.object(DelayPolicy, "due_ms", rounded_down):
        yield


@contextmanager
def delays_outlive_their_policy() -> Iterator[None]:
    """Messages that wait when delayed delivery is switched off still wait for their time."""
    right = UndelayedReader.take_due

    def take_due(self: UndelayedReader) -> list[tuple[int, int]]:
        with patch.object(delayed, "LAST_MS", self._delays.clock.now_ms()):
            return right(self)

    with patch.object(UndelayedReader, "take_due", take_due):
        yield


@contextmanager
def delayed_written_as_acknowledged() -> Iterator[None]:
    """A written cursor has waiting messages as acknowledged: a restart loses them."""
    right_remember, right_record = UndelayedReader._remember, ManagedCursor._record
    passed: dict[ManagedCursor, list[tuple[int, int]]] = {}

    def remember(self: UndelayedReader, ledger_id: int, waiting: Any, last: int) -> None:
        found = passed.setdefault(self._reader._cursor, [])
        found += [(ledger_id, entry_id) for entry_id, _ in waiting if entry_id <= last]
        right_remember(self, ledger_id, waiting, last)

    def record(self: ManagedCursor) -> Any:
        written = right_record(self)
        for ledger_id, entry_id in passed.get(self, ()):
            if (ledger_id, entry_id) > self.mark_delete_position:
                acks = AckSet.decode(written.acked.get(ledger_id) or AckSet().encode())
                acks.add(entry_id)
                written.acked[ledger_id] = acks.encode()
        return written

    with (
        patch.object(UndelayedReader, "_remember", remember),
        patch.object(ManagedCursor, "_record", record),
    ):
        yield


@contextmanager
def _records_without(unwanted: Any) -> Iterator[None]:
    right = AcksOfTransaction.records

    def records(self: AcksOfTransaction, txn_id: Any) -> list[Any]:
        return [record for record in right(self, txn_id) if not unwanted(record)]

    with patch.object(AcksOfTransaction, "records", records):
        yield


@contextmanager
def snapshot_forgets_partial_batches() -> Iterator[None]:
    """A checkpoint of pending acknowledgements omits records with parts of batches."""

    def partial(record: Any) -> bool:
        if not isinstance(record, AckRecord) or record.cumulative:
            return False
        return any(ack.still_unacked for ack in record.acks)

    with _records_without(partial):
        yield


@contextmanager
def snapshot_forgets_cumulative_ones() -> Iterator[None]:
    """A checkpoint of pending acknowledgements omits the cumulative ones."""
    with _records_without(lambda r: isinstance(r, AckRecord) and r.cumulative):
        yield


@contextmanager
def seek_leaves_old_records() -> Iterator[None]:
    """A crash repeats acknowledgements that were committed before the seek."""

    async def seek(self: Subscription, *place: Any) -> None:
        self.dispatch.disconnect_consumers("the subscription was moved by a seek")
        self.cursor.reset(*place)
        self.dispatch.redelivery_counts.clear()
        self.reader.rewind()
        await self.cursor.flush()

    with patch.object(Subscription, "seek", seek):
        yield


@contextmanager
def seek_keeps_single_acknowledgements() -> Iterator[None]:
    """Single acknowledgements survive a seek to before them."""
    right = ManagedCursor.reset

    def reset(self: ManagedCursor, *place: Any) -> None:
        kept = dict(self._acked)
        right(self, *place)
        self._acked.update(kept)

    with patch.object(ManagedCursor, "reset", reset):
        yield


@contextmanager
def unload_drops_pending_acks() -> Iterator[None]:
    """An unload forgets what open transactions have acknowledged."""
    right = PendingAcks.close

    async def close(self: PendingAcks) -> None:
        for txn_id in list(self._state.transactions):
            self._state.drop(txn_id)
        await right(self)

    with patch.object(PendingAcks, "close", close):
        yield


@contextmanager
def markers_tell_the_time() -> Iterator[None]:
    """A seek by time uses the times of markers, although the broker's clock may have been set."""

    def told(run: Any) -> int | None:
        return publish_time.published_at(run.entries[0])

    search = publish_time.first_published_at
    assert search.__defaults__ is not None
    with patch.object(search, "__defaults__", (*search.__defaults__[:-1], told)):
        yield


@contextmanager
def left_out_counts_as_acknowledged() -> Iterator[None]:
    """The client treats messages left out of a batch as acknowledged, and says so to the broker,
    like official clients. The broker does not remember what it left out, and believes the client.
    """
    right = AckGroup.delivered

    def delivered(self: AckGroup, key: Any, sent: int, unacked: int, batch_size: int) -> None:
        right(self, key, all_bits(batch_size), unacked, batch_size)

    with (
        patch.object(AckGroup, "delivered", delivered),
        patch.object(LeftOut, "delivered", lambda self, delivery: None),
    ):
        yield


BUGS = {
    "entry-skipped-after-redelivery": entry_skipped_after_redelivery,
    "left-out-counts-as-acknowledged": left_out_counts_as_acknowledged,
    "unread-counts-as-unwanted": unread_counts_as_unwanted,
    "delayed-comes-early": delayed_comes_early,
    "delays-outlive-their-policy": delays_outlive_their_policy,
    "delayed-written-as-acknowledged": delayed_written_as_acknowledged,
    "key-given-away-in-flight": key_given_away_in_flight,
    "snapshot-forgets-partial-batches": snapshot_forgets_partial_batches,
    "snapshot-forgets-cumulative-ones": snapshot_forgets_cumulative_ones,
    "seek-leaves-old-records": seek_leaves_old_records,
    "seek-keeps-single-acknowledgements": seek_keeps_single_acknowledgements,
    "unload-drops-pending-acks": unload_drops_pending_acks,
    "markers-tell-the-time": markers_tell_the_time,
}
