"""Determines the end of a ledger whose writer has ended, or seems to have ended.

1. Set the metadata to IN_RECOVERY by compare-and-set: from now on the writer cannot replace
   bookies.
2. Fence: ask the last ensemble for the last entry, until every ack quorum contains a fenced bookie.
   The highest last-confirmed among the answers was certainly confirmed.
3. Read forward from there, fencing. An entry that any bookie has might have been confirmed: it is
   written again, past the fence, until its ack quorum has it. An entry was not confirmed if
   `Quorums.denials` bookies say that they do not have it; silence proves nothing.
4. Close by compare-and-set. Only this change adds replacement bookies to the metadata: a recovery
   that dies before it leaves the ensembles that have the entries.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Final

from managed_ledger.errors import BadVersion
from managed_ledger.storage.bookkeeper.bookies import Bookies
from managed_ledger.storage.bookkeeper.copies import list_missing, with_copies
from managed_ledger.storage.bookkeeper.entry_body import (
    NO_ENTRY,
    DamagedBody,
    EntryBody,
    master_key,
    unpack,
)
from managed_ledger.storage.bookkeeper.errors import BookieFailed, RecoveryFailed
from managed_ledger.storage.bookkeeper.ledger_store import LedgerStore
from managed_ledger.storage.bookkeeper.metadata_record import LedgerMetadata, LedgerState
from managed_ledger.storage.bookkeeper.protocol import (
    ABSENT,
    LAST_CONFIRMED,
    Code,
    Response,
    add_request,
)
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.bookkeeper.reader import LedgerReader, check_digest

log = logging.getLogger(__name__)
MAX_WINDOW: Final = 64  # entries read and written again at once
ATTEMPTS: Final = 5  # of a recovery while others change the metadata


@dataclass(frozen=True, slots=True)
class _Found:
    body: EntryBody
    raw: bytes


class _Outcome:
    """The Adder of a recovery: one bookie's answer for one entry."""

    def __init__(self) -> None:
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def added(self, first_entry_id: int, last_entry_id: int) -> None:
        if not self.done.done():
            self.done.set_result(True)

    def refused(self, entry_id: int, code: int) -> None:
        if not self.done.done():
            self.done.set_result(False)

    def failed(self, entry_id: int, why: BookieFailed) -> None:
        if not self.done.done():
            self.done.set_result(False)


async def recover(
    ledger_id: int, store: LedgerStore, bookies: Bookies, wanted: Quorums
) -> LedgerMetadata:
    """Close the ledger; returns its metadata. Concurrent recoveries of the same ledger agree.
    `wanted` are the quorums that it should have had: see `copies.py`.

    Raises LedgerNotFound; RecoveryFailed if too few bookies answer (retry when they are back).
    """
    for _ in range(ATTEMPTS):
        found = await store.get(ledger_id)
        if found.metadata.state is LedgerState.CLOSED:
            return found.metadata
        check_digest(ledger_id, found.metadata)
        try:
            metadata, version = found
            return await _Recovery(ledger_id, metadata, version, store, bookies, wanted).run()
        except BadVersion:
            continue  # another recovery or the writer was first: read its change
    raise RecoveryFailed(
        f"ledger {ledger_id} changed {ATTEMPTS} times while it was being recovered; try again"
    )


class _Recovery:
    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        store: LedgerStore,
        bookies: Bookies,
        wanted: Quorums,
    ) -> None:
        self._ledger_id = ledger_id
        self._metadata = metadata
        # Entries are read from these ensembles, without the replacements: a replacement does not
        # have the entries still to be read, and its denial would prove nothing.
        self._written = metadata
        self._version = version
        self._store = store
        self._bookies = bookies
        self._quorums = metadata.quorums
        self._wanted = wanted
        self._master_key = master_key(metadata.password)

    async def run(self) -> LedgerMetadata:
        """Raises BadVersion if another client changed the metadata."""
        if self._metadata.state is LedgerState.OPEN:
            await self._change(replace(self._metadata, state=LedgerState.IN_RECOVERY))
        last = await self._fence()
        length = await self._length_up_to(last)
        window = 1
        while True:
            found = await self._read_forward(last + 1, window)
            if found:
                await self._write_again(found)
                last, length = found[-1].body.entry_id, found[-1].body.length
            if len(found) < window:
                break
            window = min(2 * window, MAX_WINDOW)
        closed = with_copies(self._metadata.closed(last, length), self._wanted)
        await self._change(closed)
        await list_missing(self._ledger_id, closed, self._quorums, self._store)
        log.info("ledger %d is recovered and ends with entry %d", self._ledger_id, last)
        return closed

    async def _change(self, metadata: LedgerMetadata) -> None:
        self._version = await self._store.change(self._ledger_id, metadata, self._version)
        self._metadata = metadata

    # --- the end of the ledger

    async def _fence(self) -> int:
        """The highest last-confirmed of all answers, once enough bookies are fenced."""
        ensemble = self._metadata.segments[-1].bookies
        first = self._metadata.segments[-1].first_entry_id
        asked = {
            asyncio.ensure_future(
                self._bookies.read(bookie, self._ledger_id, LAST_CONFIRMED, self._master_key)
            ): position
            for position, bookie in enumerate(ensemble)
        }
        confirmed, fenced, refusals = first - 1, set(), []
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    response = await answer
                    confirmed = max(confirmed, self._last_confirmed(response))
                except (BookieFailed, DamagedBody) as why:  # a damaged answer is of a fenced one
                    refusals.append(str(why))
                fenced = {asked[each] for each in asked if _is_fenced(each)}
                if self._quorums.covered(fenced):
                    return confirmed
        finally:
            for each in asked:
                each.cancel()
        raise RecoveryFailed(
            f"ledger {self._ledger_id} cannot be fenced: only {len(fenced)} of {len(ensemble)} "
            f"bookies answered ({'; '.join(refusals)}); try again when they are back"
        )

    def _last_confirmed(self, response: Response) -> int:
        """The answer's LastAddConfirmed; NO_ENTRY if the bookie has no entry of the ledger. Raises
        BookieFailed for another refusal, DamagedBody for a wrong checksum.
        """
        if response.code in ABSENT:
            return NO_ENTRY
        if response.code != Code.OK:
            raise BookieFailed(f"code {response.code} for the last entry")
        return unpack(response.body, self._ledger_id, None).last_confirmed

    async def _length_up_to(self, last: int) -> int:
        if last == NO_ENTRY:
            return 0
        reader = LedgerReader(self._ledger_id, self._metadata, self._bookies)
        return (await reader.read(last, last, 0))[0].length

    # --- what might have been confirmed

    async def _read_forward(self, first: int, count: int) -> list[_Found]:
        """The entries up to the first that does not exist. Raises RecoveryFailed if that cannot be
        determined.
        """
        reads = [asyncio.ensure_future(self._read(first + number)) for number in range(count)]
        found = []
        try:
            for read in reads:
                entry = await read
                if entry is None:
                    break
                found.append(entry)
        finally:
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
        return found

    async def _read(self, entry_id: int) -> _Found | None:
        ensemble = self._written.segment_of(entry_id).bookies
        asked = [
            asyncio.ensure_future(
                self._bookies.read(ensemble[position], self._ledger_id, entry_id, self._master_key)
            )
            for position in self._quorums.write_set(entry_id)
        ]
        denials, refusals = 0, []
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    response = await answer
                    if response.code == Code.OK:
                        body = unpack(response.body, self._ledger_id, entry_id)
                        return _Found(body, response.body)
                    if response.code in ABSENT:
                        denials += 1
                    else:
                        refusals.append(f"code {response.code}")
                except (BookieFailed, DamagedBody) as why:
                    refusals.append(str(why))
                if denials >= self._quorums.denials:
                    return None
        finally:
            for each in asked:
                each.cancel()
        raise RecoveryFailed(
            f"cannot tell whether ledger {self._ledger_id} has an entry {entry_id}: {denials} "
            f"bookies deny it, but {self._quorums.denials} must ({'; '.join(refusals)}); try again "
            "when the others are back"
        )

    async def _write_again(self, entries: list[_Found]) -> None:
        """Replace bookies that fail while others are available. Without others an ack quorum of
        each entry is enough, as for a writer. Raises RecoveryFailed.
        """
        first = entries[0].body.entry_id
        lost: set[str] = set()
        while True:
            failed, fewest = await self._write_once(entries)
            if not failed:
                return
            lost.update(failed)
            if not self._replace(first, failed, lost):
                break
        if fewest < self._quorums.ack:
            raise RecoveryFailed(
                f"the end of ledger {self._ledger_id} is on {fewest} bookies, but must be on "
                f"{self._quorums.ack}; no other bookie can replace {', '.join(failed)}: try again "
                "when they are back"
            )
        log.warning(
            "the end of ledger %d has fewer copies: no other bookie can replace %s",
            self._ledger_id,
            ", ".join(failed),
        )

    async def _write_once(self, entries: list[_Found]) -> tuple[list[str], int]:
        """Returns the bookies that did not store all of their entries, and the number of copies of
        the entry with the fewest.
        """
        outcomes: list[list[tuple[str, _Outcome]]] = []
        for entry in entries:
            entry_id = entry.body.entry_id
            request = add_request(self._master_key, entry.raw, is_recovery=True)
            ensemble = self._metadata.segment_of(entry_id).bookies
            of_entry = [(ensemble[each], _Outcome()) for each in self._quorums.write_set(entry_id)]
            outcomes.append(of_entry)
            for bookie, outcome in of_entry:
                self._bookies.add(bookie, self._ledger_id, [entry_id], [request], outcome)
        failed: dict[str, None] = {}
        fewest = self._quorums.write
        for of_entry in outcomes:
            copies = 0
            for bookie, outcome in of_entry:
                if await outcome.done:
                    copies += 1
                else:
                    failed[bookie] = None
            fewest = min(fewest, copies)
        return list(failed), fewest

    def _replace(self, first: int, failed: list[str], lost: set[str]) -> int:
        """Replace failed bookies in the metadata to be written; returns how many."""
        for bookie in failed:
            self._bookies.suspect(bookie)
        ensemble = self._metadata.segment_of(first).bookies
        once = {bookie for segment in self._metadata.segments for bookie in segment.bookies}
        chosen = self._bookies.choose_up_to(len(failed), once | lost)
        # What is written here is written as a whole: a bookie with holes before it will do.
        without = {*ensemble, *lost, *chosen}
        chosen += self._bookies.choose_up_to(len(failed) - len(chosen), without)
        taken = dict(zip(failed, chosen, strict=False))
        members = tuple(taken.get(each, each) for each in ensemble)
        if taken:
            self._metadata = self._metadata.with_ensemble(first, members)
        return len(taken)


def _is_fenced(asked: "asyncio.Future[Response]") -> bool:
    if not asked.done() or asked.cancelled() or asked.exception() is not None:
        return False
    return asked.result().code == Code.OK or asked.result().code in ABSENT
