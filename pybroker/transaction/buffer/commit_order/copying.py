"""Copying a transaction from the side log into the topic's own."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer
from pybroker.transaction.buffer.transactional_entries import parse_tag, tag_of, with_sent

_ON_THE_WAY_BYTES: Final = 4 * 1024 * 1024


class SequenceIds(Protocol):
    """What deduplication says about what goes into the topic's log late, or not at all."""

    def sent_again(self, sent: bytes) -> bytes:
        """What is kept with a copy, where `sent` was kept with the messages."""
        ...

    def given_back(self, txn_id: TxnId) -> list[bytes]:
        """What has to be kept of a transaction that is aborted, an entry each."""
        ...


class Copy:
    """Of one transaction, on its way into the topic's log."""

    __slots__ = (
        "_error",
        "_landed",
        "_log_order",
        "_on_the_way",
        "_sequence_ids",
        "_tag",
        "_txn_id",
    )

    def __init__(
        self, log_order: LogOrderBuffer, txn_id: TxnId, sequence_ids: SequenceIds | None
    ) -> None:
        self._log_order, self._txn_id, self._tag = log_order, txn_id, tag_of(txn_id)
        self._sequence_ids = sequence_ids
        self._on_the_way = 0  # bytes
        self._error: Exception | None = None
        self._landed: asyncio.Event | None = None  # something did, while somebody waits

    def copy(self, runs: Iterable[EntryRun]) -> None:
        entries: list[bytes] = []
        counts: list[int] = []
        tag = b""
        for run in runs:
            for first, last, next_tag in run.tags:
                if next_tag != tag and entries:
                    self._append(entries, counts, tag)
                    entries, counts = [], []
                tag = next_tag
                span = slice(first - run.first_entry_id, last + 1 - run.first_entry_id)
                entries += run.entries[span]
                counts += run.message_counts[span]
        if entries:
            self._append(entries, counts, tag)

    def _append(self, entries: list[bytes], counts: list[int], tag: bytes) -> None:
        size = sum(map(len, entries))
        self._on_the_way += size
        if tag != self._tag:
            sent = parse_tag(tag).sent
            assert sent is not None
            if self._sequence_ids is not None:
                sent = self._sequence_ids.sent_again(sent)
            tag = with_sent(sent, self._tag)
        done = partial(self._appended, size)
        self._log_order.copy(self._txn_id, entries, counts, tag, done)

    def _appended(self, size: int, position: Position | None, error: Exception | None) -> None:
        self._on_the_way -= size
        self._error = self._error or error
        if self._landed is not None:
            self._landed.set()

    async def room(self) -> None:
        """For more. Raises what kept a piece from being written."""
        await self._until(_ON_THE_WAY_BYTES)
        if self._error is not None:
            raise self._error

    async def settled(self) -> None:
        await self._until(0)

    async def _until(self, most_bytes: int) -> None:
        while self._on_the_way > most_bytes:
            self._landed = asyncio.Event()
            await self._landed.wait()
        self._landed = None
