"""Decides which messages go into which entry, and under which sequence ids.

A message joins the open batch or becomes an entry of its own; one that is too large for an entry
is split into chunks, and a batch that is too large into halves. An entry is sent as a SEND frame.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from pybroker.base.names import TxnId
from pybroker.client.connection.connection import DEFAULT_MAX_MESSAGE_BYTES
from pybroker.client.consuming.acks import EntryKey
from pybroker.client.encryption import Encryption
from pybroker.client.errors import InvalidConfiguration
from pybroker.client.messages import Done, Outgoing
from pybroker.client.options import ProducerOptions
from pybroker.client.producing.batch_collector import BatchCollector, OpenBatch
from pybroker.client.producing.batching import EncodedBatch, both, compressed, halves, only_message
from pybroker.client.producing.entries import EntryWriter
from pybroker.client.producing.entry_buckets import EntryBuckets, Hashes
from pybroker.client.producing.send_queue import PendingEntry
from pybroker.wire import pulsar_api_pb2 as pb

_MAX_SEQUENCE_ID: Final = 2**63 - 1

T = TypeVar("T")
# Builds an entry, or a part of one, from a message or batch. Raises before it changes anything.
Encode = Callable[[T, TxnId | None, Done], None]


class Packer:
    def __init__(
        self,
        topic: str,
        writer: EntryWriter,
        options: ProducerOptions,
        leave: Callable[[PendingEntry, Exception | None], None],
        refuse: Callable[[int, Exception, Done], None],
        buckets: EntryBuckets | None = None,
    ) -> None:
        """`leave` receives each entry, and the error if it cannot be sent. `refuse` receives the
        number of messages that became no entry, the error, and their callback."""
        self._topic = topic
        self._writer = writer
        self._options = options
        self._leave = leave
        self._refuse = refuse
        self._buckets = buckets
        self._batches = BatchCollector(options, self._close_batch, buckets)
        self._max_message_bytes = DEFAULT_MAX_MESSAGE_BYTES
        self._closed: Exception | None = None
        self.encryption: Encryption | None = None
        self.next_sequence_id: int | None = None  # None: the broker will assign it
        if options.initial_sequence_id is not None:
            self.next_sequence_id = options.initial_sequence_id + 1
        # The error of the last entry that was not even sent.
        self.unsent: Exception | None = None

    @property
    def has_open_batch(self) -> bool:
        return self._batches.is_open

    def limit(self, max_message_bytes: int) -> None:
        """The broker's maximum size of an entry."""
        self._max_message_bytes = max_message_bytes
        self._batches.max_entry_bytes = max_message_bytes

    def accept(
        self, count: int, txn_id: TxnId | None, done: Done, encode: Encode[T], content: T
    ) -> None:
        """`encode` is `message` or `batch`; `count` is the number of messages in `content`."""
        try:
            encode(content, txn_id, done)
        except Exception as error:  # mostly protobuf's, about the application's values
            self._refuse(count, _not_encoded(error, self._topic), done)

    def message(self, message: Outgoing, txn_id: TxnId | None, done: Done) -> None:
        """Adds the message to a batch or an entry, which calls `done` later."""
        sequence_id = self._take_sequence_id(message.sequence_id)
        # A delayed message is delivered on its own, so it is sent on its own.
        alone = message.deliver_at_ms is not None or message.disable_replication
        if self._options.batching_enabled and not alone:
            self._batches.add(message, txn_id, sequence_id, done)
            return
        self.flush()
        metadata, payload = self._writer.single(message, sequence_id, txn_id)
        if self._buckets is not None:
            key_hash = self._buckets.hash_of(message)
            Hashes(key_hash, key_hash).stamp(metadata)
        self._whole(metadata, payload, txn_id, done)

    def batch(self, batch: EncodedBatch, txn_id: TxnId | None, done: Done) -> None:
        """Adds an encoded batch: as one entry, or several if it is too large for one."""
        if batch.message_count < 1:
            raise InvalidConfiguration("An empty batch cannot be published")
        self.flush()
        first = self.next_sequence_id or 0
        last = first + batch.message_count - 1
        flag = batch.partition_key_b64_encoded
        key = Outgoing(b"", partition_key=batch.partition_key, partition_key_b64_encoded=flag)
        metadata, payload = self._writer.batch(batch, first, last, txn_id, key)
        if self._writer.fits(metadata, len(payload), self._room_bytes):
            self._take_sequence_id(last)
            self._entry(metadata, payload, txn_id, [done])
        elif batch.message_count > 1:
            for half, answered in zip(halves(batch), both(done), strict=True):
                self.accept(half.message_count, txn_id, answered, self.batch, half)
        else:  # it may be split into chunks
            self._take_sequence_id(last)
            alone = only_message(batch), first, txn_id, batch.compression_type
            self._whole(*self._writer.single(*alone), txn_id, done)

    def flush(self) -> None:
        """Sends the open batch."""
        self._batches.flush()

    def close(self, error: Exception) -> None:
        """Messages that are not in an entry yet fail with `error`."""
        self._closed = error
        self.flush()

    def _take_sequence_id(self, wanted: int | None = None) -> int:
        following = self.next_sequence_id or 0
        if wanted is None:
            self.next_sequence_id = following + 1
            return following
        if not 0 <= wanted <= _MAX_SEQUENCE_ID:
            raise InvalidConfiguration(f"sequence_id {wanted} is not between 0 and 2^63 - 1")
        self.next_sequence_id = max(following, wanted + 1)
        return wanted

    def _whole(
        self, metadata: pb.MessageMetadata, payload: bytes, txn_id: TxnId | None, done: Done
    ) -> None:
        if self._options.chunking_enabled and len(payload) > self._chunk_bytes(metadata):
            self._chunks(metadata, payload, txn_id, done)
        else:
            self._entry(metadata, payload, txn_id, [done])

    def _chunk_bytes(self, metadata: pb.MessageMetadata) -> int:
        """How much of a payload fits into one entry beside its metadata. Raises MessageTooBig."""
        return self._writer.chunk_bytes(metadata, self._room_bytes)

    @property
    def _room_bytes(self) -> int:
        """The broker's maximum size of an entry, minus what encryption adds."""
        overhead = 0 if self.encryption is None else self.encryption.overhead_bytes
        return self._max_message_bytes - overhead

    def _chunks(
        self, metadata: pb.MessageMetadata, payload: bytes, txn_id: TxnId | None, done: Done
    ) -> None:
        size, chunks = self._chunk_bytes(metadata), list[EntryKey]()
        starts = range(0, len(payload), size)
        metadata.uuid = f"{self._writer.producer_name}-{metadata.sequence_id}"
        metadata.num_chunks_from_msg = len(starts)
        metadata.total_chunk_msg_size = len(payload)
        for number, start in enumerate(starts):
            metadata.chunk_id = number
            answered = [done] if start == starts[-1] else []
            self._entry(metadata, payload[start : start + size], txn_id, answered, chunks)

    def _close_batch(self, batch: OpenBatch) -> None:
        plain, count = b"".join(batch.parts), len(batch.done)
        try:
            encoded = compressed(plain, count, self._options.compression_type)
            metadata, payload = self._writer.batch(
                encoded,
                batch.first_sequence_id,
                batch.last_sequence_id,
                batch.txn_id,
                batch.first_message,
            )
            if count == 1 and not self._writer.fits(metadata, len(payload), self._room_bytes):
                alone = batch.first_message, batch.first_sequence_id, batch.txn_id
                metadata, payload = self._writer.single(*alone)
            if batch.hashes is not None:
                batch.hashes.stamp(metadata)
        except Exception as error:
            self.unsent = error
            for done in batch.done:
                self._refuse(1, _not_encoded(error, self._topic), done)
            return
        self._entry(metadata, payload, batch.txn_id, batch.done)

    def _entry(
        self,
        metadata: pb.MessageMetadata,
        payload: bytes,
        txn_id: TxnId | None,
        done: list[Done],
        chunks: list[EntryKey] | None = None,
    ) -> None:
        batched = metadata.HasField("num_messages_in_batch")
        size = metadata.num_messages_in_batch if batched else 0
        partial = chunks is not None and not done
        entry = PendingEntry(metadata.sequence_id, b"", txn_id, size, done, chunks, partial)
        try:
            entry.frame = self._frame(metadata, payload)
        except Exception as error:  # the error that ended the producer, or one of encryption
            self.unsent = error
            self._leave(entry, error)
        else:
            self._leave(entry, None)

    def _frame(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        if self._closed is not None:
            raise self._closed
        if self.encryption is not None:
            payload = self.encryption.encrypt(metadata, payload)
        return self._writer.frame(metadata, payload, self._topic, self._max_message_bytes)


def _not_encoded(error: Exception, topic: str) -> Exception:
    error.add_note(
        f"A message to {topic} was not sent: it contains a value of the wrong type or size"
    )
    return error
