"""One compaction: two passes over the previous compacted log and the entries after it.

The first pass finds the last message of each key; the second copies these into the new log. Only
decided entries are read: nothing after the topic's `max_read_position` at the start, and nothing
hidden, so open and aborted transactions have no effect.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.broker.compaction.compacted_log import (
    READ_BYTES,
    READ_ENTRIES,
    CompactedLog,
    Kept,
    encode,
    last_index,
)
from pybroker.broker.compaction.selection import KeptMessages, Selection
from pybroker.broker.dispatch.entry_reader import HiddenRanges, between

_WRITES_AHEAD: Final = 4


class LogChanged(ManagedLedgerError):
    """Entries read in the first pass no longer exist."""


@dataclass(frozen=True, slots=True)
class Span:
    """The input: the previous compacted log, and the topic's entries after it."""

    ledger: ManagedLedger
    hidden: HiddenRanges
    compacted: CompactedLog | None
    first: Position
    horizon: Position  # the last position

    async def chunks(self) -> AsyncIterator[list[Kept]]:
        """The entries, in the order of the topic. Raises ManagedLedgerError."""
        if self.compacted is not None:
            at = self.compacted.ledger.first_position
            while True:
                found, at = await self.compacted.read(at)
                if not found:
                    break
                yield found
                await asyncio.sleep(0)  # cached entries arrive without waiting
        position = self.first
        while run := await self.ledger.read(position, self.horizon, READ_ENTRIES, READ_BYTES):
            interceptor = self.ledger.interceptor
            yield self._visible(run if interceptor is None else await interceptor.shown(run))
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
            await asyncio.sleep(0)

    def _visible(self, run: EntryRun) -> list[Kept]:
        first, last = run.first_entry_id, run.first_entry_id + len(run.entries) - 1
        hidden = self.hidden.ranges_within(run.ledger_id, first, last)
        return [
            Kept(Position(run.ledger_id, entry_id), run.entries[index], run.message_counts[index])
            for start, stop in between(first, last, hidden)
            for entry_id in range(start, stop + 1)
            if run.message_counts[index := entry_id - first]
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    last: Position | None  # the last kept position, with its batch index or -1
    last_index: int
    left_out: int  # messages
    tombstones: int  # kept messages that delete their key


async def compact(
    span: Span, log: ManagedLedger, retain_null_key: bool, drop_to: Position
) -> Outcome:
    """Returns when the new log is durable. Messages that delete a key are dropped up to the
    position `drop_to`. Raises ManagedLedgerError.
    """
    selection = Selection(retain_null_key, drop_to)
    async for chunk in span.chunks():
        await selection.see(chunk)
    kept = await selection.kept()
    writer = _Writer(log)
    async for chunk in span.chunks():
        await writer.write([left for each in chunk if (left := kept.of(each)) is not None])
    await writer.finish()
    if not kept.complete:
        raise LogChanged(f"{span.ledger.name} was trimmed during its compaction: try again")
    return _outcome(writer, kept)


def _outcome(writer: "_Writer", kept: KeptMessages) -> Outcome:
    if writer.last is None:
        return Outcome(None, -1, kept.left_out, 0)
    index = last_index([writer.last])
    return Outcome(writer.last.position, index, kept.left_out, kept.tombstones)


class _Writer:
    """Keeps a few appends in flight."""

    def __init__(self, log: ManagedLedger) -> None:
        self._log = log
        self._under_way: deque[asyncio.Future[None]] = deque()
        self.last: Kept | None = None

    async def write(self, entries: Sequence[Kept]) -> None:
        if not entries:
            return
        self.last = entries[-1]
        appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(first: Position | None, error: Exception | None) -> None:
            if appended.cancelled():
                return
            if error is None:
                appended.set_result(None)
            else:
                appended.set_exception(error)
                appended.exception()  # marks it as retrieved: after a failure none is awaited

        self._log.append(list(map(encode, entries)), [kept.messages for kept in entries], done)
        self._under_way.append(appended)
        if len(self._under_way) > _WRITES_AHEAD:
            await self._under_way.popleft()

    async def finish(self) -> None:
        while self._under_way:
            await self._under_way.popleft()
