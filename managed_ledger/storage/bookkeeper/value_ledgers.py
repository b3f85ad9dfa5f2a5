"""Values that are too large for a ZooKeeper node, in the last entry of a ledger.

A key with such a value has a ledger; new values are appended to it up to a size limit. A process
that takes over the key recovers the ledger, which fences this writer.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from managed_ledger.errors import CorruptStorage, LedgerEnded, LedgerNotFound, ManagedLedgerError
from managed_ledger.storage.bookkeeper.client import BookKeeper
from managed_ledger.storage.bookkeeper.errors import BookKeeperError
from managed_ledger.storage.bookkeeper.reader import LedgerReader
from managed_ledger.storage.bookkeeper.writer import LedgerWriter
from managed_ledger.storage.operations import settle

log = logging.getLogger(__name__)
MAX_ENTRY_BYTES: Final = 5 << 20  # what bookies take by default: nettyMaxFrameSizeBytes
MAX_LEDGER_BYTES: Final = 64 << 20


class ValueLedgers:
    def __init__(self, client: BookKeeper) -> None:
        self._client = client
        self._writers: dict[str, LedgerWriter] = {}

    async def write(self, key: str, entry: bytes) -> int:
        """Append a value; returns the ledger once the value is confirmed. Raises
        ManagedLedgerError.
        """
        if len(entry) > MAX_ENTRY_BYTES:
            raise BookKeeperError(
                f"{key!r} has {len(entry)} bytes, more than the {MAX_ENTRY_BYTES} of an entry: "
                "acknowledge the messages that are missing between acknowledged ones"
            )
        writer = await self._writer(key)
        try:
            await _append(writer, entry)
        except LedgerEnded:  # the value is certainly not in the ended ledger: use another
            writer = await self._writer(key)
            await _append(writer, entry)
        return writer.ledger_id

    async def _writer(self, key: str) -> LedgerWriter:
        writer = self._writers.get(key)
        if writer is None or writer.ended is not None or writer.length > MAX_LEDGER_BYTES:
            await self._close(self._writers.pop(key, None))
            custom = {"application": b"pybroker", "component": b"cursor", "key": key.encode()}
            writer = self._writers[key] = await self._client.create(custom)
        return writer

    async def read(self, ledger_id: int) -> bytes | None:
        """Recover the ledger, which fences its writer; returns the last entry, or None if it is
        empty. Raises ManagedLedgerError.
        """
        try:
            metadata = await self._client.recover(ledger_id)
        except LedgerNotFound:
            log.warning(
                "ledger %d of a cursor does not exist: using the position in its node", ledger_id
            )
            return None
        last = metadata.last_entry_id
        if last < 0:
            return None
        reader = LedgerReader(ledger_id, metadata, self._client.bookies)
        return (await reader.read(last, last, MAX_ENTRY_BYTES))[0].payload

    async def write_once(self, custom: Mapping[str, bytes], entry: bytes) -> int:
        """Create a closed ledger with only this entry; returns its number. Raises
        ManagedLedgerError.
        """
        if len(entry) > MAX_ENTRY_BYTES:
            raise BookKeeperError(f"{len(entry)} bytes are more than an entry can hold")
        writer = await self._client.create(custom)
        await _append(writer, entry)
        await writer.close()
        return writer.ledger_id

    async def read_one(self, ledger_id: int, entry_id: int) -> bytes:
        """The value in a ledger without a writer. Raises ManagedLedgerError."""
        metadata = await self._client.recover(ledger_id)
        if not 0 <= entry_id <= metadata.last_entry_id:
            raise CorruptStorage(f"ledger {ledger_id} has no entry {entry_id}")
        reader = LedgerReader(ledger_id, metadata, self._client.bookies)
        return (await reader.read(entry_id, entry_id, MAX_ENTRY_BYTES))[0].payload

    def writes(self, key: str, ledger_id: int) -> bool:
        """Whether this process writes to that ledger for this key."""
        writer = self._writers.get(key)
        return writer is not None and writer.ledger_id == ledger_id and writer.ended is None

    async def delete(self, key: str, ledger_id: int) -> None:
        """Delete a ledger that nothing refers to any more. A failure is logged, and the ledger
        remains.
        """
        if self._writers.get(key) is not None and self._writers[key].ledger_id == ledger_id:
            self._writers.pop(key).abandon()
        try:
            await self._client.delete(ledger_id)
        except ManagedLedgerError as why:
            log.warning("ledger %d of %r is unused but was not deleted: %s", ledger_id, key, why)

    async def release(self, keys: Iterable[str]) -> None:
        """Close the ledgers of these keys, so that the next process need not recover them."""
        released = [self._writers.pop(key) for key in keys if key in self._writers]
        await asyncio.gather(*map(self._close, released))

    async def close(self) -> None:
        await self.release(list(self._writers))

    async def _close(self, writer: LedgerWriter | None) -> None:
        if writer is not None and writer.ended is None:
            try:
                await writer.close()
            except ManagedLedgerError as why:
                log.info("ledger %d is left to recovery: %s", writer.ledger_id, why)


async def _append(writer: LedgerWriter, entry: bytes) -> None:
    """Returns when the entry is durable. Raises ManagedLedgerError if it may not be."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    writer.append(entry, lambda error: settle(done, None, error))
    await done
