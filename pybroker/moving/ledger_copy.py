"""Copies one ledger, with the same number and the same entries, message counts and tags.

Then the copy is closed and read back. It is recorded as copied only if both checksums are equal.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from struct import Struct
from typing import Final

from managed_ledger.checksum import crc32c
from managed_ledger.errors import CorruptStorage, LedgerClosed, LedgerEnded
from managed_ledger.ledger_metadata import LedgerInfo
from managed_ledger.storage.backend import EntryRun
from managed_ledger.storage.importing import ImportTarget
from pybroker.moving.places import Entries, Source
from pybroker.moving.record import MoveFailed, Sum, ledger_key

READ_ENTRIES: Final = 10_000
READ_BYTES: Final = 1024 * 1024
IN_FLIGHT_BYTES: Final = 4 * READ_BYTES  # of one ledger, not durable yet
_HEAD: Final = Struct("<III")  # bytes, messages, bytes of the tag

Piece = tuple[int, list[bytes], list[int], bytes]  # first entry, entries, message counts, tag


class Digest:
    def __init__(self) -> None:
        self._entries = self._messages = self._size_bytes = self._crc = 0

    def add(self, piece: Piece) -> None:
        """Add the entries one by one, so that the checksum does not depend on the pieces."""
        _, entries, counts, tag = piece
        crc = self._crc
        for entry, count in zip(entries, counts, strict=True):
            crc = crc32c(entry, crc32c(_HEAD.pack(len(entry), count, len(tag)) + tag, crc))
        self._crc = crc
        self._entries += len(entries)
        self._messages += sum(counts)
        self._size_bytes += sum(map(len, entries))

    @property
    def sum(self) -> Sum:
        return Sum(self._entries, self._messages, self._size_bytes, self._crc)


class LedgerCopy:
    def __init__(
        self, source: Source, target: ImportTarget, info: LedgerInfo, told: Callable[[int], None]
    ) -> None:
        """`told` is called with the number of bytes copied or read back."""
        self._source = source
        self._target = target
        self._ledger_id = info.ledger_id
        self._entries = info.entries
        self._told = told
        self._in_flight = _InFlight()

    @property
    def is_noted(self) -> bool:
        """Whether the ledger was already copied and verified."""
        noted = self._target.metadata.get(ledger_key(self._ledger_id))
        return noted is not None and bool(noted.value)

    async def run(self) -> Sum:
        """Copy and verify. Raises MoveFailed, CorruptStorage, LedgerExists, and the storage's
        errors.
        """
        key = ledger_key(self._ledger_id)
        noted = self._target.metadata.get(key)
        if noted is not None and noted.value:
            return self._check_noted(Sum.decode(noted.value))
        if noted is None:
            await self._target.begin_import(self._ledger_id, key)
            first = 0
        else:
            first = await self._target.resume_import(self._ledger_id, self._entries)
        try:
            wanted = await self._copy_from(first)
        except (LedgerClosed, LedgerEnded) as why:
            raise MoveFailed(
                f"ledger {self._ledger_id} is not whole in the target ({why}): repeat the command, "
                "which continues from here"
            ) from why
        summary = await self._target.recover_ledger(self._ledger_id)
        found = await self._sum_of_target(summary.last_entry_id + 1)
        if found != wanted:
            raise MoveFailed(
                f"ledger {self._ledger_id} differs from the source when read back: {wanted} was "
                f"written, {found} was read; check the target's disks, give the copy up with "
                "--discard, and repeat it"
            )
        await self._target.metadata.put(key, found.encode())
        return found

    def _check_noted(self, found: Sum) -> Sum:
        if found.entries != self._entries:
            raise MoveFailed(
                f"ledger {self._ledger_id} was copied with {found.entries} entries, and now has "
                f"{self._entries}: the source has changed; give the copy up with --discard"
            )
        return found

    async def _copy_from(self, first: int) -> Sum:
        """Copy the entries from `first` on; the target already has the earlier entries, which are
        only added to the checksum.
        """
        digest = Digest()
        async for piece in pieces_of(self._source, self._ledger_id, self._entries):
            digest.add(piece)
            await self._append(_from(piece, first))
            self._told(sum(map(len, piece[1])))
        await self._in_flight.less_than(1)
        return digest.sum

    async def _append(self, piece: Piece) -> None:
        first, entries, counts, tag = piece
        if not entries:
            return
        size = sum(map(len, entries))
        await self._in_flight.less_than(IN_FLIGHT_BYTES)
        appended = self._in_flight.add(size)
        self._target.append(self._ledger_id, first, entries, counts, appended, tag)

    async def _sum_of_target(self, entries: int) -> Sum:
        digest = Digest()
        async for piece in pieces_of(self._target, self._ledger_id, entries):
            digest.add(piece)
            self._told(sum(map(len, piece[1])))
        return digest.sum


class _InFlight:
    """The appended bytes that are not durable yet."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def add(self, size: int) -> Callable[[Exception | None], None]:
        self._size_bytes += size + 1  # empty entries count too

        def appended(error: Exception | None) -> None:
            self._size_bytes -= size + 1
            self._error = self._error or error
            self._changed.set()

        return appended

    async def less_than(self, size: int) -> None:
        """Wait until fewer than `size` bytes are in flight. Raises the error of a failed append."""
        while self._size_bytes >= size and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error


async def pieces_of(stored: Entries, ledger_id: int, count: int) -> AsyncIterator[Piece]:
    """The first `count` entries of a ledger. Raises CorruptStorage if there are fewer."""
    at = 0
    while at < count:
        run = await stored.read(ledger_id, at, count - 1, READ_ENTRIES, READ_BYTES)
        if not run.entries:
            raise CorruptStorage(f"ledger {ledger_id} has {at} entries; {count} are listed")
        for piece in _pieces(run):
            yield piece
        at += len(run.entries)


def _pieces(run: EntryRun) -> Iterator[Piece]:
    """The pieces of a run, each with one tag."""
    at, start = 0, run.first_entry_id
    for first, last, tag in run.tags:
        yield from _piece(run, at, first - start, b"")
        yield from _piece(run, first - start, last + 1 - start, tag)
        at = last + 1 - start
    yield from _piece(run, at, len(run.entries), b"")


def _piece(run: EntryRun, start: int, stop: int, tag: bytes) -> Iterator[Piece]:
    if start < stop:
        counts = run.message_counts[start:stop]
        yield run.first_entry_id + start, run.entries[start:stop], counts, tag


def _from(piece: Piece, first: int) -> Piece:
    """Leaves out the entries before `first`."""
    at, entries, counts, tag = piece
    skipped = max(0, first - at)
    return at + skipped, entries[skipped:], counts[skipped:], tag
