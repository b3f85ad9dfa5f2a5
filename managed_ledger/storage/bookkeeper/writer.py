"""An open ledger: entries go to the bookies of their write sets and are confirmed in order.

An entry is confirmed when its ack quorum has answered and all entries before it are confirmed.
Answers are counted per entry; those of a replaced bookie no longer count. When a bookie fails,
another replaces it from the first unconfirmed entry on. A compare-and-set changes the metadata
before any entry that depends on the change is confirmed. If no other bookie is available and the
rest of the ensemble has an ack quorum for each entry, the ledger continues without the failed one.

The writer ends when it is fenced (another client recovers the ledger), when too few bookies of the
ensemble are left, or when a successor could have more copies. In the last two cases it closes the
ledger after the last complete append, by compare-and-set, before it reports a failure: an append
that failed with LedgerEnded is not in the ledger and never will be. An append that failed with
LedgerFenced or LedgerClosed may be in the ledger: recovery decides. The writer must never set the
recovery flag of an add, which passes the fence, except for a copy that nobody else writes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from managed_ledger.errors import BadVersion, LedgerClosed, LedgerEnded, ManagedLedgerError
from managed_ledger.shared_task import shared_task
from managed_ledger.storage.bookkeeper import protocol
from managed_ledger.storage.bookkeeper.bookies import Bookies
from managed_ledger.storage.bookkeeper.copies import lacks_copies, list_missing, with_copies
from managed_ledger.storage.bookkeeper.entry_body import HEAD_BYTES, NO_ENTRY, master_key, pack
from managed_ledger.storage.bookkeeper.errors import BookieFailed, LedgerFenced, NotEnoughBookies
from managed_ledger.storage.bookkeeper.frame_limits import MODEST_BYTES
from managed_ledger.storage.bookkeeper.ledger_store import LedgerStore
from managed_ledger.storage.bookkeeper.metadata_record import LedgerMetadata, LedgerState
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.operations import call_safely

log = logging.getLogger(__name__)
LOOK_AGAIN_S: Final = 1.0  # between looks for bookies while copies are missing
_MODEST_BYTES: Final = MODEST_BYTES - 1024  # without what a request adds to its entry
LEFT_ALONE_S: Final = 15.0  # much less than openLedgerRereplicationGracePeriod
_THE_WRITER_LOST: Final = frozenset({protocol.Code.FENCED, protocol.Code.UNAUTHORIZED})
# Called with None when the entry is confirmed. LedgerEnded: the entry is not in the ledger; after
# any other error it may be.
Appended = Callable[[Exception | None], None]


class _Replica:
    """A bookie at a position of the ensemble. Keeps its answers apart from those of a later bookie
    at the same position.
    """

    __slots__ = ("bit", "bookie", "position", "writer")

    def __init__(self, writer: "LedgerWriter", position: int, bookie: str) -> None:
        self.writer: LedgerWriter | None = writer
        self.position = position
        self.bit = 1 << position
        self.bookie = bookie

    def added(self, first_entry_id: int, last_entry_id: int) -> None:
        if self.writer is not None:
            self.writer._added(self.bit, first_entry_id, last_entry_id)

    def refused(self, entry_id: int, code: int) -> None:
        if self.writer is not None:
            self.writer._refused(self, entry_id, code)

    def failed(self, entry_id: int, why: BookieFailed) -> None:
        if self.writer is not None:
            self.writer._bookie_failed(self, str(why))


class _Pending:
    __slots__ = ("acknowledged", "appended", "request", "size_bytes")

    def __init__(self, request: bytes, size_bytes: int) -> None:
        self.request = request
        self.size_bytes = size_bytes
        self.appended: Appended | None = None  # only for the last entry of an append
        self.acknowledged = 0  # a bit for each position


class LedgerWriter:
    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        store: LedgerStore,
        bookies: Bookies,
        wanted: Quorums | None = None,
        is_copy: bool = False,
    ) -> None:
        """The ledger must be OPEN, without entries, and without another writer. `wanted` are the
        quorums of a successor if there are enough bookies; None: the writer never ends for a
        successor. The writer of a copy passes fences, and leaves the ledger open if it ends early.
        """
        self._is_copy = is_copy
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.last_confirmed = NO_ENTRY
        self.length = 0  # of all payloads, in bytes; confirmed or not
        self.confirmed_length = 0
        self._whole = (NO_ENTRY, 0)  # end of the last whole append: entry, length up to it
        self.pending_bytes = 0  # of payloads
        self._version = version
        self._store = store
        self._bookies = bookies
        self._quorums = metadata.quorums
        self._wanted = wanted
        self._is_small = wanted is not None and lacks_copies(self._quorums, wanted)
        flags = protocol.RECOVERY_ADD if is_copy else 0
        first = protocol.head(protocol.Operation.ADD, flags)
        self._prefix = partial(protocol.add_prefix, master_key(metadata.password), first=first)
        self._next_entry_id = 0
        self._pending: dict[int, _Pending] = {}
        self._ensemble = [
            _Replica(self, position, bookie)
            for position, bookie in enumerate(metadata.segments[-1].bookies)
        ]
        self._write_sets = [
            self._quorums.write_set(first) for first in range(self._quorums.ensemble)
        ]
        self._all_write_all = self._quorums.write == self._quorums.ensemble
        self._failed: dict[int, str] = {}  # positions without a bookie, and why
        self._lost: set[str] = set()  # bookies that may lack entries of this ledger
        self._replacing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._look_again_s = 0.0
        self._lost_since_s = 0.0  # when the first of the failed bookies failed
        self._drained: asyncio.Event | None = None
        self._is_closing = False
        self._closing: asyncio.Task[LedgerMetadata] | None = None
        self.ended: LedgerClosed | LedgerEnded | None = None

    @property
    def pending_entries(self) -> int:
        return len(self._pending)

    @property
    def lacks_copies(self) -> bool:
        """Whether new entries get fewer copies than wanted."""
        wanted = self._quorums if self._wanted is None else self._wanted
        return self.ended is None and self._copies() < wanted.write

    # --- appending

    def append(self, payload: bytes, appended: Appended | None) -> int:
        """As `append_all`, of one entry. `appended` None: the next entry belongs to the same
        append.
        """
        return self.append_all([b""], [payload], appended)

    def append_all(
        self, headers: Iterable[bytes], payloads: Sequence[bytes], appended: Appended | None
    ) -> int:
        """Returns the first entry's number. `appended` is called once, in the order of the appends,
        after this has returned. Each header is stored in front of its payload.
        """
        first = entry_id = self._next_entry_id
        self._next_entry_id += len(payloads)
        if self.ended is not None or self._is_closing:
            if appended is not None:
                loop = asyncio.get_running_loop()
                loop.call_soon(call_safely, appended, self._refusal())
            return first
        ledger_id, last_confirmed, length = self.ledger_id, self.last_confirmed, self.length
        prefix, pending, requests = self._prefix, self._pending, []
        for header, payload in zip(headers, payloads, strict=True):
            size = len(header) + len(payload)
            length += size
            before = prefix(HEAD_BYTES + size)
            request = pack(ledger_id, entry_id, last_confirmed, length, payload, header, before)
            requests.append(request)
            pending[entry_id] = _Pending(request, size)
            entry_id += 1
        pending[entry_id - 1].appended = appended
        size_bytes = length - self.length
        self.pending_bytes += size_bytes
        self.length = length
        for replica in self._ensemble:
            if replica.writer is not None:
                self._send(replica, first, requests, size_bytes)
        if self._failed or self._is_small:
            self._look_for_bookies()
        return first

    def _send(
        self, replica: _Replica, first: int, requests: Sequence[bytes], size_bytes: int
    ) -> None:
        """Send the requests, of `size_bytes` in all, whose write sets contain the replica."""
        entry_ids: Sequence[int] = range(first, first + len(requests))
        if not self._all_write_all:
            sets, position = self._write_sets, replica.position
            mine = [each for each in entry_ids if position in sets[each % len(sets)]]
            entry_ids, requests = mine, [requests[each - first] for each in mine]
        if entry_ids:
            add = self._bookies.add if size_bytes <= _MODEST_BYTES else self._bookies.add_large
            add(replica.bookie, self.ledger_id, entry_ids, requests, replica)

    def _added(self, bit: int, first: int, last: int) -> None:
        pending = self._pending
        for entry_id in range(first, last + 1):
            if (each := pending.get(entry_id)) is not None:
                each.acknowledged |= bit
        self._confirm()

    def _refused(self, replica: _Replica, entry_id: int, code: int) -> None:
        if code in _THE_WRITER_LOST:
            self._end(
                LedgerFenced(
                    f"ledger {self.ledger_id} is fenced: another client recovers it; open the "
                    "managed ledger again"
                )
            )
        elif code == protocol.Code.TOO_LARGE:
            self._is_too_large(replica, entry_id)
        else:
            self._bookie_failed(replica, f"code {code} for entry {entry_id}")

    def _is_too_large(self, replica: _Replica, entry_id: int) -> None:
        """The bookie is replaced if others can take the entry. Otherwise the ledger ends before the
        entry, which is refused in the next ledger: see `Appender`.
        """
        if (pending := self._pending.get(entry_id)) is None:
            return
        size_bytes = len(pending.request)
        why = f"entry {entry_id} makes a request of {size_bytes} bytes, more than bookies take"
        most = self._bookies.max_add_bytes(self._quorums.ack)
        if most is None or size_bytes <= most:
            self._bookie_failed(replica, f"{why} (nettyMaxFrameSizeBytes)", is_suspect=False)
        elif self._replacing is None and self.ended is None:
            self._replacing = asyncio.ensure_future(self._make_room(f"{why} ({most})"))

    def _confirm(self) -> None:
        """Confirm entries, except during a replacement: the new segment begins at the first entry
        that was unconfirmed when the replacement began.
        """
        if self._replacing is None:
            self._confirm_all_that_are()

    def _confirm_all_that_are(self) -> None:
        """Entries that a callback appends are confirmed after a later answer, not here."""
        needed, pending = self._quorums.ack, self._pending
        entry_id = self.last_confirmed + 1
        while (each := pending.get(entry_id)) is not None:
            if each.acknowledged.bit_count() < needed:
                break
            del pending[entry_id]
            self.last_confirmed = entry_id
            self.confirmed_length += each.size_bytes
            self.pending_bytes -= each.size_bytes
            if each.appended is not None:
                self._whole = entry_id, self.confirmed_length
                call_safely(each.appended, None)
                pending = self._pending  # the callback may have ended the writer
            entry_id += 1
        if not self._pending and self._drained is not None:
            self._drained.set()

    # --- replacing bookies

    def _bookie_failed(self, replica: _Replica, why: str, is_suspect: bool = True) -> None:
        replica.writer = None
        if not self._failed:
            self._lost_since_s = asyncio.get_running_loop().time()
        self._lost.add(replica.bookie)
        self._failed[replica.position] = why
        for pending in self._pending.values():
            pending.acknowledged &= ~replica.bit
        if self._is_closing and not self._pending:
            return  # closing the metadata needs no other bookie
        if is_suspect:
            self._bookies.suspect(replica.bookie)
        if self._replacing is None and self.ended is None:
            log.info("ledger %d replaces bookie %s: %s", self.ledger_id, replica.bookie, why)
            self._replacing = asyncio.ensure_future(self._replace())

    async def _replace(self) -> None:
        try:
            while self._failed and self.ended is None:
                positions = sorted(self._failed)
                chosen = self._others(len(positions))
                if not chosen:
                    self._go_on_without(positions)
                    break
                await self._replace_by(dict(zip(positions, chosen, strict=False)))
        except LedgerClosed as why:
            self._end(why)
        except ManagedLedgerError as why:
            await self._end_early(why)
        finally:
            self._replacing = None
        self._confirm()

    def _others(self, count: int) -> list[str]:
        """Up to `count` bookies that have never been in the ensemble."""
        members = {replica.bookie for replica in self._ensemble}
        return self._bookies.choose_up_to(count, self._lost | members)

    def _go_on_without(self, positions: list[int]) -> None:
        """Continue with the rest of the ensemble. Raises NotEnoughBookies."""
        names = ", ".join(self._ensemble[position].bookie for position in positions)
        if not self._quorums.suffices_without(positions):
            raise NotEnoughBookies(f"no other bookie can replace {names}")
        log.warning("ledger %d continues without %s: no other is available", self.ledger_id, names)
        self._look_again_s = asyncio.get_running_loop().time() + LOOK_AGAIN_S

    def _look_for_bookies(self) -> None:
        """Called by appends, so that a bookie that comes back causes no work for idle ledgers."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._look_again_s or self._replacing is not None or self._looking is not None:
            return
        self._look_again_s = now_s + LOOK_AGAIN_S
        if self._failed and self._others(1):
            self._replacing = asyncio.ensure_future(self._replace())
        elif self._wanted is None:
            return
        elif self._could_have_more_copies(self._wanted):
            self._looking = asyncio.ensure_future(self._look_at_others(self._wanted))
        elif self._is_left_alone(now_s):
            gone = ", ".join(self._ensemble[each].bookie for each in sorted(self._failed))
            self._replacing = asyncio.ensure_future(self._make_room(f"{gone} left the cluster"))

    def _could_have_more_copies(self, wanted: Quorums) -> bool:
        successor = wanted.within(len(self._bookies.available()))
        return successor is not None and successor.write > self._copies()

    def _copies(self) -> int:
        return self._quorums.copies_without(self._failed)

    async def _look_at_others(self, wanted: Quorums) -> None:
        """Check that the other registered bookies answer. Entries are confirmed meanwhile."""
        live = {replica.bookie for replica in self._ensemble if replica.writer is not None}
        others = [each for each in self._bookies.available() if each not in live]
        try:
            await self._bookies.look_at(others[: wanted.ensemble], self.ledger_id)
        finally:
            self._looking = None
        if self._replacing is not None or self._is_closing:
            return
        if self._could_have_more_copies(wanted):
            why = f"it has {self._copies()} copies of each entry, and a new ledger can have more"
            self._replacing = asyncio.ensure_future(self._make_room(why))

    def _is_left_alone(self, now_s: float) -> bool:
        """Whether lost bookies have left the cluster. BookKeeper's auto-recovery fences an open
        ledger half a minute after that, so the writer ends earlier.
        """
        if not self._failed or now_s < self._lost_since_s + LEFT_ALONE_S:
            return False
        registered = self._bookies.registered
        return len(self._bookies.available()) >= self._quorums.ack and any(
            self._ensemble[position].bookie not in registered for position in self._failed
        )

    async def _make_room(self, why: str) -> None:
        """End early, so that a successor is created."""
        try:
            await self._end_early(BookieFailed(why))
        finally:
            self._replacing = None

    async def _replace_by(self, chosen: dict[int, str]) -> None:
        """`chosen` maps positions to bookies. After a ManagedLedgerError this writer must end."""
        members = [replica.bookie for replica in self._ensemble]
        for position, bookie in chosen.items():
            members[position] = bookie
        first, ensemble = self.last_confirmed + 1, tuple(members)
        await self._change(lambda metadata: metadata.with_ensemble(first, ensemble))
        for position, bookie in chosen.items():
            del self._failed[position]
            self._ensemble[position] = _Replica(self, position, bookie)
        if not self._pending:
            return
        requests = [pending.request for pending in self._pending.values()]
        first = next(iter(self._pending))
        for position in chosen:
            replica = self._ensemble[position]
            if replica.writer is not None:
                self._send(replica, first, requests, self.pending_bytes)

    async def _change(self, change: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
        """Change the metadata by compare-and-set. BookKeeper's auto-recovery may change it, too,
        but only in complete segments. Raises LedgerFenced, ManagedLedgerError.
        """
        while True:
            changed = change(self.metadata)
            try:
                self._version = await self._store.change(self.ledger_id, changed, self._version)
            except BadVersion as conflict:
                found = await self._store.get(self.ledger_id, insist=True)
                if not found.metadata.is_still(self.metadata):
                    raise LedgerFenced(
                        f"ledger {self.ledger_id} belongs to another client now; open the managed "
                        "ledger again"
                    ) from conflict
                self.metadata, self._version = found
            else:
                self.metadata = changed
                return

    # --- the end

    async def _end_early(self, why: ManagedLedgerError) -> None:
        """Close the ledger before its time. Entries appended meanwhile wait, and fail with the
        others.
        """
        self._confirm_all_that_are()  # with the answers of the bookies that are left
        for replica in self._ensemble:
            replica.writer = None
        try:
            if not self._is_copy:
                await self._close_metadata()
        except LedgerClosed as fenced:
            self._end(fenced)
        except ManagedLedgerError as unknown:
            self._end(
                LedgerClosed(
                    f"ledger {self.ledger_id} accepts no more entries ({why}) and could not be "
                    f"closed ({unknown}); open the managed ledger again"
                )
            )
        else:
            log.warning(
                "ledger %d ends with entry %d: %s",
                self.ledger_id,
                self.metadata.last_entry_id,
                why,
            )
            self._end(
                LedgerEnded(f"ledger {self.ledger_id} has ended and accepts no more entries: {why}")
            )

    async def close(self) -> LedgerMetadata:
        """Wait for the appended entries, then close the ledger at the last confirmed entry, by
        compare-and-set. Concurrent callers share the outcome; after a failure the call may be
        repeated. Raises LedgerFenced if another client owns the ledger.
        """
        if self._closing is None or self._closing.done():
            self._is_closing = True
            self._closing = shared_task(self._close())
        return await asyncio.shield(self._closing)

    async def _close(self) -> LedgerMetadata:
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
        """Close after the last whole append. Raises LedgerFenced, ManagedLedgerError."""
        (last, length), wanted = self._whole, self._wanted or self._quorums
        await self._change(lambda metadata: with_copies(metadata.closed(last, length), wanted))
        if self.metadata.quorums != self._quorums:
            await list_missing(self.ledger_id, self.metadata, self._quorums, self._store)

    def abandon(self) -> None:
        """Stop without closing the ledger, as after a crash; the next process recovers it."""
        self._end(LedgerClosed(f"ledger {self.ledger_id} was abandoned"))

    def _end(self, why: LedgerClosed | LedgerEnded) -> None:
        if self.ended is not None:
            return
        self.ended = why
        if self._looking is not None:
            self._looking.cancel()
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
