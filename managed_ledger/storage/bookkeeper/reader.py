"""Reads confirmed entries, from one bookie after the other.

If every bookie has every entry (write quorum = ensemble), a batch read returns many at once. An
answer is accepted only if checksum and ids are right; otherwise the next bookie is asked.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.bookkeeper.bookies import Bookies
from managed_ledger.storage.bookkeeper.copies import is_missing
from managed_ledger.storage.bookkeeper.entry_body import HEAD_BYTES, DamagedBody, EntryBody, unpack
from managed_ledger.storage.bookkeeper.errors import BadLedgerMetadata, BookieFailed
from managed_ledger.storage.bookkeeper.metadata_record import DigestType, LedgerMetadata
from managed_ledger.storage.bookkeeper.protocol import ABSENT, Code, Response, batch_bodies

PARALLEL_READS: Final = 32  # entries of a striped ledger, one request each
BODY_OVERHEAD_BYTES: Final = HEAD_BYTES + 4


def check_digest(ledger_id: int, metadata: LedgerMetadata) -> None:
    """Raises BadLedgerMetadata unless the ledger's checksums are CRC32C."""
    if metadata.digest_type is not DigestType.CRC32C:
        raise BadLedgerMetadata(
            f"ledger {ledger_id} has checksums of type {metadata.digest_type.name}; only CRC32C, "
            "Apache Pulsar's default (managedLedgerDigestType), is read"
        )


class LedgerReader:
    def __init__(self, ledger_id: int, metadata: LedgerMetadata, bookies: Bookies) -> None:
        check_digest(ledger_id, metadata)
        self.ledger_id = ledger_id
        self.metadata = metadata
        self._bookies = bookies

    async def read(self, first: int, last: int, max_bytes: int) -> list[EntryBody]:
        """Entries `first` to `last`, inclusive: at least the first, and about as many as fit into
        `max_bytes`. Both must be confirmed entries.

        Raises BookieFailed if bookies do not answer (retry), CorruptStorage if no bookie has an
        entry.
        """
        end = self.metadata.segment_end(first)
        last = last if end is None else min(last, end)
        if not self.metadata.quorums.is_striped:
            return await self._read_batch(first, last - first + 1, max_bytes)
        last = min(last, first + PARALLEL_READS - 1)
        entries = range(first, last + 1)
        found = await asyncio.gather(*map(self._read_one, entries), return_exceptions=True)
        return list(_before_the_first_failure(found))

    async def _read_one(self, entry_id: int) -> EntryBody:
        return (await self._ask_around(entry_id, 1, 0))[0]

    async def _read_batch(self, first: int, count: int, max_bytes: int) -> list[EntryBody]:
        return await self._ask_around(first, count, max_bytes + count * BODY_OVERHEAD_BYTES)

    async def _ask_around(self, first: int, count: int, size_bytes: int) -> list[EntryBody]:
        refusals: list[str] = []
        is_definite = True
        for bookie in self._in_order(first):
            try:
                if count == 1:
                    response = await self._bookies.read(bookie, self.ledger_id, first)
                else:
                    response = await self._bookies.read_batch(
                        bookie, self.ledger_id, first, count, size_bytes
                    )
                if response.code == Code.OK:
                    return list(self._bodies(response, first, count))
                is_definite = is_definite and response.code in ABSENT
                refusals.append(f"{bookie}: code {response.code}")
            except DamagedBody as why:
                refusals.append(f"{bookie}: {why}")
            except BookieFailed as why:
                is_definite = False
                refusals.append(str(why))
        what = f"entry {first} of ledger {self.ledger_id}: {'; '.join(refusals)}"
        if is_definite:
            raise CorruptStorage(f"no bookie has {what}")
        raise BookieFailed(f"no bookie answered with {what}; try again when they are back")

    def _in_order(self, entry_id: int) -> list[str]:
        """The bookies, those in quarantine last."""
        ensemble = self.metadata.segment_of(entry_id).bookies
        write_set = self.metadata.quorums.write_set(entry_id)
        bookies = [ensemble[each] for each in write_set if not is_missing(ensemble[each])]
        return sorted(bookies, key=self._bookies.is_suspect)

    def _bodies(self, response: Response, first: int, count: int) -> Iterator[EntryBody]:
        """The entries before the first damaged one. Raises DamagedBody if there are none."""
        raw = [response.body] if count == 1 else batch_bodies(response)
        if not raw:
            raise DamagedBody("it sent an empty batch")
        for number, body in enumerate(raw[:count]):
            try:
                yield unpack(body, self.ledger_id, first + number)
            except DamagedBody:
                if number == 0:
                    raise
                return


def _before_the_first_failure(found: Sequence[EntryBody | BaseException]) -> Iterator[EntryBody]:
    for number, each in enumerate(found):
        if isinstance(each, BaseException):
            if number == 0:
                raise each
            return
        yield each
