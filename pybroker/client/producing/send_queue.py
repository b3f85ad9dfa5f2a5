"""Entries without a receipt, sent or not: in order, with deadlines.

They are kept as wire frames, so that a new registration of the producer sends them again, in order
and with the same sequence ids.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pybroker.base.names import TxnId
from pybroker.client.connection.connection import Connection
from pybroker.client.consuming.acks import EntryKey
from pybroker.client.errors import ConnectError, ProducerBlockedQuotaExceededException, Timeout
from pybroker.client.messages import Done, MessageId


@dataclass(slots=True)
class PendingEntry:
    """`batch_size` is 0 for a message outside batches. `done`: one callback per message.

    The chunks of one message share `chunks`: the positions of stored ones. All but the last are
    `partial`, and no caller waits for them.
    """

    sequence_id: int
    frame: bytes
    txn_id: TxnId | None
    batch_size: int
    done: list[Done]
    chunks: list[EntryKey] | None = None
    partial: bool = False
    written: bool = False
    deadline_s: float = 0.0

    @property
    def message_count(self) -> int:
        return 0 if self.partial else self.batch_size or 1

    def finish(self, stored: MessageId | None, error: Exception | None) -> None:
        if stored is not None and self.chunks is not None:
            self.chunks.append(stored.place[:2])
            stored = stored.from_chunk(self.chunks[0])
        for index, done in enumerate(self.done):
            if stored is not None and self.batch_size:
                done(stored.in_batch(index, self.batch_size), error)
            else:
                done(stored, error)


class SendQueue:
    def __init__(
        self, topic: str, send_timeout_ms: int, finished: Callable[[PendingEntry], None]
    ) -> None:
        """`finished` is called after each entry's answer."""
        self._topic = topic
        self._send_timeout_ms = send_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._entries: deque[PendingEntry] = deque()
        self._finished = finished
        self._timer: asyncio.TimerHandle | None = None

    def push(self, entry: PendingEntry, connection: Connection | None) -> None:
        entry.deadline_s = self._loop.time() + self._send_timeout_ms / 1000
        self._entries.append(entry)
        if self._timer is None:
            self._watch()
        if connection is not None and not connection.closed:
            entry.written = True
            connection.write(entry.frame)

    def write_all(self, connection: Connection) -> None:
        for entry in self._entries:
            entry.written = True
            connection.write(entry.frame)

    async def all_answered(self) -> Exception | None:
        """Waits until all current entries are answered. Returns the first failure, if any."""
        failures: list[Exception] = []
        waiting = len(self._entries)
        answered = self._loop.create_future()

        def done(_: MessageId | None, error: Exception | None) -> None:
            nonlocal waiting
            waiting -= 1
            if error is not None:
                failures.append(error)
            if not waiting and not answered.done():
                answered.set_result(None)

        for entry in self._entries:
            entry.done.append(done)
        if waiting:
            await answered
        return failures[0] if failures else None

    def is_transactional(self, sequence_id: int) -> bool:
        return any(
            entry.txn_id is not None for entry in self._entries if entry.sequence_id == sequence_id
        )

    def take(self, sequence_id: int) -> PendingEntry | None:
        """Removes the entry of a receipt or a refusal; a refusal may overtake receipts."""
        if self._entries and self._entries[0].sequence_id == sequence_id:
            return self._entries.popleft()
        for entry in self._entries:
            if entry.sequence_id == sequence_id:
                self._entries.remove(entry)
                return entry
        return None

    def refuse(self, sequence_id: int, error: Exception) -> None:
        """Fails the entry, and the other chunks of its message."""
        refused = self.take(sequence_id)
        if refused is None:
            return
        others = []
        if refused.partial:
            others = [each for each in self._entries if each.chunks is refused.chunks]
            self._entries = deque(
                each for each in self._entries if each.chunks is not refused.chunks
            )
        for entry in (refused, *others):
            self.finish(entry, None, error)

    def finish(
        self, entry: PendingEntry, stored: MessageId | None, error: Exception | None
    ) -> None:
        entry.finish(stored, error)
        self._finished(entry)

    def fail_unsure(self) -> None:
        """Fails transactional entries that were in flight: see topic_producer.py for the reason."""
        unsure = [entry for entry in self._entries if entry.written and entry.txn_id is not None]
        if not unsure:
            return
        self._entries = deque(
            entry for entry in self._entries if not entry.written or entry.txn_id is None
        )
        error = ConnectError(f"The connection for {self._topic} broke before the receipt came")
        for entry in unsure:
            self.finish(entry, None, error)

    def not_let_in(self, error: BaseException) -> None:
        """Called when the broker refuses the producer, which is then opened again. Pending messages
        fail at once if the refusal is about the backlog quota or a full disk, as in the official
        clients.
        """
        if isinstance(error, ProducerBlockedQuotaExceededException):
            self.fail_all(error)

    def fail_all(self, error: Exception) -> None:
        entries, self._entries = self._entries, deque()
        for entry in entries:
            self.finish(entry, None, error)

    def close(self, error: Exception) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.fail_all(error)

    def _watch(self) -> None:
        if self._send_timeout_ms > 0:
            self._timer = self._loop.call_at(self._entries[0].deadline_s, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._entries and self._entries[0].deadline_s <= self._loop.time():
            # Later entries fail too: stored after a failed one they would be out of order.
            self.fail_all(
                Timeout(f"No receipt from {self._topic} within {self._send_timeout_ms} ms")
            )
        if self._entries:
            self._watch()
