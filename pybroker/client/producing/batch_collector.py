"""Collects a producer's messages into batches.

A batch leaves when it is full (by messages, by bytes of content, or by what an entry may hold),
when its first message has waited long enough, when somebody flushes it, or when a message comes
that must not be in it: one of another transaction.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pybroker.client.connection.connection import DEFAULT_MAX_MESSAGE_BYTES
from pybroker.client.messages import Done, Outgoing
from pybroker.client.options import ProducerOptions
from pybroker.client.producing.batching import parts_of
from pybroker.names import TxnId

_ENCRYPTION_BYTES: Final = 16  # more, encrypted


@dataclass(slots=True)
class OpenBatch:
    """Messages of one transaction (or none) that will leave together."""

    txn_id: TxnId | None
    first_sequence_id: int
    first_message: Outgoing
    last_sequence_id: int = -1
    size_bytes: int = 0  # of the messages' content
    entry_bytes: int = 0  # not compressed
    parts: list[bytes] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)


class BatchCollector:
    def __init__(self, options: ProducerOptions, leave: Callable[[OpenBatch], None]) -> None:
        self._max_messages = options.batching_max_messages
        self._max_bytes = options.batching_max_allowed_size_in_bytes
        self._delay_s = options.batching_max_publish_delay_ms / 1000
        self._leave = leave
        # What the broker takes in one entry.
        self.max_entry_bytes = DEFAULT_MAX_MESSAGE_BYTES
        self._batch: OpenBatch | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._batch is not None

    def add(self, message: Outgoing, txn_id: TxnId | None, sequence_id: int, done: Done) -> None:
        """Raises, before anything has changed, if the message cannot be encoded."""
        parts = parts_of(message, sequence_id)
        size = len(parts[2])
        entry_bytes = len(parts[0]) + len(parts[1]) + size
        batch = self._batch
        if batch is not None and (
            batch.txn_id != txn_id
            or batch.size_bytes + size > self._max_bytes
            or batch.entry_bytes + entry_bytes > self.max_entry_bytes - _ENCRYPTION_BYTES
        ):
            self.flush()
            batch = None
        if batch is None:
            batch = self._open(OpenBatch(txn_id, sequence_id, message))
        batch.parts += parts
        batch.done.append(done)
        batch.last_sequence_id = sequence_id
        batch.size_bytes += size
        batch.entry_bytes += entry_bytes
        if len(batch.done) >= self._max_messages:
            self.flush()

    def _open(self, batch: OpenBatch) -> OpenBatch:
        self._batch = batch
        self._timer = asyncio.get_running_loop().call_later(self._delay_s, self.flush)
        return batch

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._batch = self._batch, None
        if batch is not None:
            self._leave(batch)
