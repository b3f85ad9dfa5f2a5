"""Copies a transaction from the side log into the topic's own log."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.commit_order_lag import note_lag
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer
from pybroker.transaction.buffer.transactional_entries import marker, parse_tag, tag_of, with_sent
from pybroker.transaction.txn_status import TxnAction

_APPENDED_BYTES: Final = 256 * 1024
_ON_THE_WAY_BYTES: Final = 4 * 1024 * 1024
_ON_THE_WAY_APPENDS: Final = 300  # each is answered separately, all in one turn


class SequenceIds(Protocol):
    """Deduplication's data for messages that enter the topic's log late, or never."""

    def sent_again(self, sent: bytes) -> bytes:
        """The data to store with a copy of messages that were stored with `sent`."""
        ...

    def given_back(self, txn_id: TxnId) -> list[bytes]:
        """The data to store for an aborted transaction, one entry each."""
        ...


class Copy:
    """The copy of one transaction, on its way into the topic's log."""

    __slots__ = (
        "_appends",
        "_began",
        "_counts",
        "_entries",
        "_error",
        "_landed",
        "_log_order",
        "_now_ms",
        "_on_the_way",
        "_sequence_ids",
        "_size",
        "_tag",
        "_tag_of_entries",
        "_txn_id",
    )

    def __init__(
        self,
        log_order: LogOrderBuffer,
        txn_id: TxnId,
        sequence_ids: SequenceIds | None,
        now_ms: int,
    ) -> None:
        self._now_ms, self._began = now_ms, False
        self._log_order, self._txn_id, self._tag = log_order, txn_id, tag_of(txn_id)
        self._sequence_ids = sequence_ids
        # The entries collected for the next append.
        self._entries: list[bytes] = []
        self._counts: list[int] = []
        self._size = 0
        self._tag_of_entries = b""
        self._on_the_way = self._appends = 0  # bytes in flight, and the number of appends
        self._error: Exception | None = None
        self._landed: asyncio.Event | None = None  # an append completed; exists while awaited

    def copy(self, runs: Iterable[EntryRun]) -> None:
        """Entries with the same tag share an append, up to a size."""
        for run in runs:
            if not self._began:
                self._began = True
                note_lag(self._log_order.ledger, run.entries[0], self._now_ms)
            for first, last, tag in run.tags:
                if tag != self._tag_of_entries or self._size >= _APPENDED_BYTES:
                    self.complete()
                self._tag_of_entries = tag
                span = slice(first - run.first_entry_id, last + 1 - run.first_entry_id)
                self._entries += run.entries[span]
                self._counts += run.message_counts[span]
                self._size += sum(map(len, run.entries[span]))

    def complete(self) -> None:
        """Append the collected entries."""
        if not self._entries:
            return
        entries, counts, size = self._entries, self._counts, self._size
        self._entries, self._counts, self._size = [], [], 0
        self._on_the_way += size
        self._appends += 1
        done = partial(self._appended, size)
        self._log_order.copy(self._txn_id, entries, counts, self._copied_tag(), done)

    def _copied_tag(self) -> bytes:
        if self._tag_of_entries == self._tag:
            return self._tag
        sent = parse_tag(self._tag_of_entries).sent
        assert sent is not None
        if self._sequence_ids is not None:
            sent = self._sequence_ids.sent_again(sent)
        return with_sent(sent, self._tag)

    def _appended(self, size: int, position: Position | None, error: Exception | None) -> None:
        self._on_the_way -= size
        self._appends -= 1
        self._error = self._error or error
        if self._landed is not None:
            self._landed.set()

    async def room(self) -> None:
        """Wait for room for more entries. Raises the error of a failed append."""
        await self._until(_ON_THE_WAY_BYTES, _ON_THE_WAY_APPENDS)
        if self._error is not None:
            raise self._error

    async def settled(self) -> None:
        await self._until(0, 0)

    async def _until(self, most_bytes: int, most_appends: int) -> None:
        while self._on_the_way > most_bytes or self._appends > most_appends:
            self._landed = asyncio.Event()
            await self._landed.wait()
        self._landed = None


def copy_what_is_told(
    log_order: LogOrderBuffer, txn_id: TxnId, told: Iterable[bytes], now_ms: int
) -> None:
    """Store deduplication's data for an aborted transaction: an entry each, hidden from readers."""
    entry, tag = marker(txn_id, TxnAction.ABORT, now_ms), tag_of(txn_id)

    def done(position: Position | None, error: Exception | None) -> None:
        if position is not None:  # otherwise the marker after it fails as well
            log_order.hide(position)

    for sent in told:
        log_order.copy(txn_id, [entry], [0], with_sent(sent, tag), done)
