"""Collects a producer's messages into batches.

A batch is sent when it is full (by messages, by bytes of content, or by the maximum size of an
entry), when its first message has waited long enough, when it is flushed, or when a message of
another transaction arrives.

With BatchingType.KeyBased there is one batch per key, and in a segment of a scalable topic one per
entry bucket; all are sent together. A batch's sequence ids then have gaps that other batches fill.
Deduplication treats a sequence id below the last one as a duplicate, so batches are sent in the
order of their last ids, each under that id only.
"""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from pybroker.base.names import TxnId
from pybroker.client.connection.connection import DEFAULT_MAX_MESSAGE_BYTES
from pybroker.client.messages import Done, Outgoing
from pybroker.client.options import BatchingType, ProducerOptions
from pybroker.client.producing.batching import parts_of
from pybroker.client.producing.entry_buckets import EntryBuckets, Hashes

_ENCRYPTION_BYTES: Final = 16  # added by encryption


@dataclass(slots=True)
class OpenBatch:
    """Messages of one transaction (or none) that will be sent in one entry."""

    txn_id: TxnId | None
    first_sequence_id: int
    first_message: Outgoing
    last_sequence_id: int = -1
    hashes: Hashes | None = None  # of the messages' keys, if the topic has entry buckets
    parts: list[bytes] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)


class BatchCollector:
    def __init__(
        self,
        options: ProducerOptions,
        leave: Callable[[OpenBatch], None],
        buckets: EntryBuckets | None = None,
    ) -> None:
        self._max_messages = options.batching_max_messages
        self._max_bytes = options.batching_max_allowed_size_in_bytes
        self._delay_s = options.batching_max_publish_delay_ms / 1000
        self._by_key = options.batching_type == BatchingType.KeyBased
        self._leave = leave
        self._buckets = buckets
        # The broker's maximum size of an entry.
        self.max_entry_bytes = DEFAULT_MAX_MESSAGE_BYTES
        self._timer: asyncio.TimerHandle | None = None
        self._start_anew()

    def _start_anew(self) -> None:
        self._batches: dict[Hashable, OpenBatch] = {}
        self._txn_id: TxnId | None = None
        self._messages = 0
        self._bytes = 0  # of the messages' content
        self._entry_bytes = 0  # before compression

    @property
    def is_open(self) -> bool:
        return self._messages > 0

    def add(self, message: Outgoing, txn_id: TxnId | None, sequence_id: int, done: Done) -> None:
        """Raises, before anything changes, if the message cannot be encoded."""
        parts = parts_of(message, sequence_id)
        size = len(parts[2])
        entry_bytes = len(parts[0]) + len(parts[1]) + size
        if self._messages and (
            self._txn_id != txn_id
            or self._bytes + size > self._max_bytes
            or self._entry_bytes + entry_bytes > self.max_entry_bytes - _ENCRYPTION_BYTES
        ):
            self.flush()
        key, key_hash = _key(message) if self._by_key else None, 0
        if self._buckets is not None:
            key_hash = self._buckets.hash_of(message)
            key = key if self._by_key else self._buckets.bucket_of(key_hash)
        batch = self._batches.get(key)
        if batch is None:
            batch = self._open(key, OpenBatch(txn_id, sequence_id, message))
        if self._buckets is not None:
            hashes = batch.hashes or Hashes(key_hash, key_hash)
            batch.hashes = hashes.with_one(key_hash)
        batch.parts += parts
        batch.done.append(done)
        batch.last_sequence_id = sequence_id
        self._messages += 1
        self._bytes += size
        self._entry_bytes += entry_bytes
        if self._messages >= self._max_messages:
            self.flush()

    def _open(self, key: Hashable, batch: OpenBatch) -> OpenBatch:
        if not self._batches:
            self._txn_id = batch.txn_id
            self._timer = asyncio.get_running_loop().call_later(self._delay_s, self.flush)
        self._batches[key] = batch
        return batch

    def flush(self) -> None:
        if not self._messages:
            return  # frequent: each message that is sent on its own flushes first
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batches = list(self._batches.values())
        self._start_anew()
        if len(batches) > 1:
            batches.sort(key=attrgetter("last_sequence_id"))
            for batch in batches:
                batch.first_sequence_id = batch.last_sequence_id
        for batch in batches:
            self._leave(batch)


def _key(message: Outgoing) -> Hashable:
    """Like the broker, which uses the ordering key first."""
    if message.ordering_key is not None:
        return message.ordering_key
    return message.partition_key, message.partition_key_b64_encoded
