"""An open ledger: entries go to the bookies of their write sets and are confirmed in order.

An entry is confirmed when its ack quorum has answered, and all entries before it are confirmed;
the entry's answers are counted one by one, and an answer of a bookie that was replaced since counts
no more. When a bookie fails, another takes its place from the first unconfirmed entry on: the
metadata says so, by compare-and-set, before anything is confirmed that depends on it.

The writer ends when it is fenced (another client recovers the ledger), or when no bookie can take
the place of one that failed. In the second case it closes the ledger behind the last append that
is whole, by compare-and-set, before it tells anybody of a failure: what failed with LedgerEnded is
not in the ledger and never will be. What failed with LedgerFenced or LedgerClosed may be: recovery
decides. Nothing here may set the recovery flag of an add: it passes the fence.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from managed_ledger.errors import BadVersion, LedgerClosed, LedgerEnded, ManagedLedgerError
from managed_ledger.storage.bookkeeper.bookies import Bookies
from managed_ledger.storage.bookkeeper.entry_body import (
    HEAD_BYTES,
    NO_ENTRY,
    master_key,
    pack_head,
)
from managed_ledger.storage.bookkeeper.errors import BookieFailed, LedgerFenced
from managed_ledger.storage.bookkeeper.ledger_store import LedgerStore
from managed_ledger.storage.bookkeeper.metadata_record import LedgerMetadata, LedgerState
from managed_ledger.storage.bookkeeper.protocol import Code, add_prefix
from managed_ledger.storage.operations import call_safely

log = logging.getLogger(__name__)
_THE_WRITER_LOST: Final = frozenset({Code.FENCED, Code.UNAUTHORIZED})
# None when the entry is confirmed. LedgerEnded: it is not in the ledger. Else that is unknown.
Appended = Callable[[Exception | None], None]


class _Replica:
    """One place in the ensemble while one bookie holds it: tells the bookie's answers apart."""

    __slots__ = ("bookie", "position", "writer")

    def __init__(self, writer: "LedgerWriter", position: int, bookie: str) -> None:
        self.writer: LedgerWriter | None = writer
        self.position = position
        self.bookie = bookie

    def added(self, entry_id: int, code: int) -> None:
        if self.writer is not None:
            self.writer._answered(self, entry_id, code)

    def failed(self, entry_id: int, why: BookieFailed) -> None:
        if self.writer is not None:
            self.writer._bookie_failed(self, str(why))


class _Pending:
    __slots__ = ("acknowledged", "appended", "request", "size_bytes")

    def __init__(self, request: bytes, size_bytes: int, appended: Appended | None) -> None:
        self.request = request
        self.size_bytes = size_bytes
        self.appended = appended
        self.acknowledged = 0  # a bit for each position


class LedgerWriter:
    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        store: LedgerStore,
        bookies: Bookies,
    ) -> None:
        """The ledger is new: OPEN, without entries, and nobody else writes to it."""
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.last_confirmed = NO_ENTRY
        self.length = 0  # of all payloads, in bytes; confirmed or not
        self.confirmed_length = 0
        self._whole = (NO_ENTRY, 0)  # the last entry of a whole append, and the length up to it
        self.pending_bytes = 0  # of payloads
        self._version = version
        self._store = store
        self._bookies = bookies
        self._quorums = metadata.quorums
        self._master_key = master_key(metadata.password)
        self._next_entry_id = 0
        self._pending: dict[int, _Pending] = {}
        self._ensemble = [
            _Replica(self, position, bookie)
            for position, bookie in enumerate(metadata.segments[-1].bookies)
        ]
        self._write_sets = [
            self._quorums.write_set(first) for first in range(self._quorums.ensemble)
        ]
        self._failed: dict[int, str] = {}  # positions, and why
        self._lost: set[str] = set()  # bookies that may lack entries of this ledger
        self._replacing: asyncio.Task[None] | None = None
        self._drained: asyncio.Event | None = None
        self._is_closing = False
        self.ended: LedgerClosed | LedgerEnded | None = None

    @property
    def pending_entries(self) -> int:
        return len(self._pending)

    # --- appending

    def append(self, payload: bytes, appended: Appended | None) -> int:
        """The entry's number. `appended` is called once, in the order of the appends, and not
        before this returns. None: the next entry belongs to the same append and speaks for both.
        """
        entry_id = self._next_entry_id
        self._next_entry_id += 1
        if self.ended is not None or self._is_closing:
            if appended is not None:
                loop = asyncio.get_running_loop()
                loop.call_soon(call_safely, appended, self._refusal())
            return entry_id
        size = len(payload)
        self.length += size
        self.pending_bytes += size
        head = pack_head(self.ledger_id, entry_id, self.last_confirmed, self.length, payload)
        prefix = add_prefix(self._master_key, HEAD_BYTES + size)
        request = b"".join((prefix, head, payload))
        self._pending[entry_id] = _Pending(request, size, appended)
        ensemble, bookies = self._ensemble, self._bookies
        for position in self._write_sets[entry_id % len(ensemble)]:
            replica = ensemble[position]
            if replica.writer is not None:
                bookies.add(replica.bookie, self.ledger_id, entry_id, request, replica)
        return entry_id

    def _answered(self, replica: _Replica, entry_id: int, code: int) -> None:
        if code == Code.OK:
            pending = self._pending.get(entry_id)
            if pending is not None:
                pending.acknowledged |= 1 << replica.position
                self._confirm()
        elif code in _THE_WRITER_LOST:
            self._end(
                LedgerFenced(
                    f"ledger {self.ledger_id} is fenced: another client recovers it; open the "
                    "managed ledger again"
                )
            )
        else:
            self._bookie_failed(replica, f"code {code} for entry {entry_id}")

    def _confirm(self) -> None:
        """Not while a bookie is being replaced: the new segment begins at the first entry that is
        unconfirmed now.
        """
        if self._replacing is None:
            self._confirm_all_that_are()

    def _confirm_all_that_are(self) -> None:
        needed = self._quorums.ack
        while self._pending:
            entry_id = next(iter(self._pending))
            pending = self._pending[entry_id]
            if pending.acknowledged.bit_count() < needed:
                break
            del self._pending[entry_id]
            self.last_confirmed = entry_id
            self.confirmed_length += pending.size_bytes
            self.pending_bytes -= pending.size_bytes
            if pending.appended is not None:
                self._whole = entry_id, self.confirmed_length
                call_safely(pending.appended, None)
        if not self._pending and self._drained is not None:
            self._drained.set()

    # --- replacing bookies

    def _bookie_failed(self, replica: _Replica, why: str) -> None:
        replica.writer = None
        self._lost.add(replica.bookie)
        self._failed[replica.position] = why
        bit = ~(1 << replica.position)
        for pending in self._pending.values():
            pending.acknowledged &= bit
        if self._replacing is None and self.ended is None:
            log.info("ledger %d replaces bookie %s: %s", self.ledger_id, replica.bookie, why)
            self._bookies.suspect(replica.bookie)
            self._replacing = asyncio.ensure_future(self._replace())

    async def _replace(self) -> None:
        try:
            while self._failed and self.ended is None:
                await self._replace_once(sorted(self._failed))
        except LedgerClosed as why:
            self._end(why)
        except ManagedLedgerError as why:
            await self._end_early(why)
        finally:
            self._replacing = None
        self._confirm()

    async def _replace_once(self, positions: list[int]) -> None:
        """Raises ManagedLedgerError: then this writer has to end."""
        members = [replica.bookie for replica in self._ensemble]
        chosen = self._bookies.choose(len(positions), self._lost.union(members))
        for position, bookie in zip(positions, chosen, strict=True):
            members[position] = bookie
        metadata = self.metadata.with_ensemble(self.last_confirmed + 1, tuple(members))
        try:
            self._version = await self._store.change(self.ledger_id, metadata, self._version)
        except BadVersion as conflict:
            raise LedgerFenced(
                f"ledger {self.ledger_id} belongs to another client now; open the managed ledger "
                "again"
            ) from conflict
        self.metadata = metadata
        for position in positions:
            del self._failed[position]
            self._ensemble[position] = _Replica(self, position, members[position])
        for entry_id, pending in list(self._pending.items()):
            for position in self._write_sets[entry_id % len(members)]:
                replica = self._ensemble[position]
                if position in positions and replica.writer is not None:
                    self._bookies.add(
                        replica.bookie, self.ledger_id, entry_id, pending.request, replica
                    )

    # --- the end

    async def _end_early(self, why: ManagedLedgerError) -> None:
        """Close it without the bookie that nobody replaces. What is appended meanwhile waits, and
        fails with the rest.
        """
        self._confirm_all_that_are()  # by the bookies that are left
        for replica in self._ensemble:
            replica.writer = None
        try:
            await self._close_metadata()
        except LedgerClosed as fenced:
            self._end(fenced)
        except ManagedLedgerError as unknown:
            self._end(
                LedgerClosed(
                    f"ledger {self.ledger_id} lost a bookie ({why}) and could not be closed "
                    f"({unknown}); open the managed ledger again"
                )
            )
        else:
            log.warning(
                "ledger %d lost a bookie and ends with entry %d: %s",
                self.ledger_id,
                self.metadata.last_entry_id,
                why,
            )
            self._end(
                LedgerEnded(f"ledger {self.ledger_id} lost a bookie ({why}) and takes no more")
            )

    async def close(self) -> LedgerMetadata:
        """Wait for what was appended, then close the ledger at the last confirmed entry, by
        compare-and-set. Raises LedgerFenced if somebody else did or will.
        """
        self._is_closing = True
        while self._pending and self.ended is None:
            self._drained = asyncio.Event()
            await self._drained.wait()
        if self._replacing is not None:
            await asyncio.shield(self._replacing)
        if isinstance(self.ended, LedgerFenced):
            raise LedgerFenced(*self.ended.args)
        if self.metadata.state is not LedgerState.CLOSED:
            await self._close_metadata()
        self._end(LedgerClosed(f"ledger {self.ledger_id} is closed"))
        return self.metadata

    async def _close_metadata(self) -> None:
        """Behind the last whole append. Raises LedgerFenced, ManagedLedgerError."""
        last, length = self._whole
        closed = replace(self.metadata, state=LedgerState.CLOSED, last_entry_id=last, length=length)
        try:
            self._version = await self._store.change(self.ledger_id, closed, self._version)
        except BadVersion as conflict:
            raise LedgerFenced(
                f"ledger {self.ledger_id} was recovered by another client before it could be "
                "closed; open the managed ledger again"
            ) from conflict
        self.metadata = closed

    def abandon(self) -> None:
        """Forget it without closing it, as a crash would; whoever opens it recovers it."""
        self._end(LedgerClosed(f"ledger {self.ledger_id} was given up"))

    def _end(self, why: LedgerClosed | LedgerEnded) -> None:
        if self.ended is not None:
            return
        self.ended = why
        for replica in self._ensemble:
            replica.writer = None
        pending, self._pending = self._pending, {}
        self.pending_bytes = 0
        for each in pending.values():
            if each.appended is not None:
                call_safely(each.appended, self._refusal())
        if self._drained is not None:
            self._drained.set()

    def _refusal(self) -> LedgerClosed | LedgerEnded:
        if self.ended is None:
            return LedgerClosed(f"ledger {self.ledger_id} is being closed")
        return type(self.ended)(*self.ended.args)
