"""A managed ledger: an endless log with cursors, made of a list of ledgers; the last one is open.

The list record is the truth about which ledgers exist: it is written with compare-and-set (which
keeps out a second writer) before a new ledger is used and before the data of a dropped one is
deleted. `rollover.py` creates the next ledger, `trim.py` decides which ones may be deleted.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from managed_ledger.appender import Appended, Appender, nobody_minds
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursor import ManagedCursor
from managed_ledger.cursors import Cursors, nobody_cares
from managed_ledger.deletion import delete_managed_ledger
from managed_ledger.errors import (
    DamagedEntries,
    LedgerClosed,
    LedgerNotFound,
    ManagedLedgerError,
)
from managed_ledger.housekeeper import Housekeeper, Visit
from managed_ledger.interceptor import Interceptor
from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.ledger_metadata import LedgerInfo, LedgerList
from managed_ledger.list_record import ListRecord
from managed_ledger.position import Position
from managed_ledger.recovery import CREATED_AT_MS
from managed_ledger.rollover import Rollover, as_it_is
from managed_ledger.shared_task import shared_task
from managed_ledger.steady_time import SteadyTime
from managed_ledger.storage.backend import Backend, EntryRun, KeyAt, Span
from managed_ledger.trim import Retention, releasable

log = logging.getLogger(__name__)


class Keeper(Protocol):
    """Maintains managed ledgers; implemented by the factory."""

    housekeeper: Housekeeper

    def became_active(self, ledger: "ManagedLedger") -> None: ...
    def became_dirty(self, ledger: "ManagedLedger") -> None: ...
    def was_closed(self, ledger: "ManagedLedger") -> None: ...
    def was_fenced(self, ledger: "ManagedLedger") -> None: ...


class ManagedLedger:
    """Created by `ManagedLedgerFactory.open`."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        time: SteadyTime,
        config: ManagedLedgerConfig,
        index: LedgerIndex,
        record: ListRecord,
        cursors: Cursors,
        keeper: Keeper,
    ) -> None:
        self.name = name
        self.config = config
        self._trimming: asyncio.Lock | None = None  # from the first trimming on
        # Callbacks; nearly always empty.
        # Called with each deleted ledger id.
        self.on_trimmed: tuple[Callable[[int], None], ...] = ()
        self.kept_from: tuple[Callable[[], Position], ...] = ()  # return where trimming must stop
        self.on_visit: tuple[Callable[[], None], ...] = ()  # called some time after activity
        self.interceptor: Interceptor | None = None
        self.read_entries = self.missed_entries = 0  # all reads; those from disk
        self._keeper = keeper
        self.visit: Visit | None = None  # the housekeeper's next one
        self._active = False
        self._backend = backend
        self._time = time
        self._index = index
        self._record = record
        self._cursors = cursors
        limits = config.max_entries_per_ledger, config.max_size_per_ledger_bytes
        self._appender = Appender(backend, index, *limits, on_full=nobody_cares)
        self.call_ahead_of_held = self._appender.call_ahead_of_held
        self._rollover = Rollover(
            name, backend, time, config, index, record, self._appender, self._rolled_over
        )
        self._rollover.noted = self._noted
        self._appender.on_full = self._rollover.when_full
        self._appender.on_trouble = self._rollover.when_troubled
        self._looked_after_ms = self._time.now_ms()
        self._closing: asyncio.Task[None] | None = None
        self._closed: LedgerClosed | None = None
        cursors.on_dirty = self._cursors_became_dirty

    @property
    def closed(self) -> bool:
        """Closed, deleted, or fenced by another writer."""
        return self._closed is not None

    # contents

    @property
    def cursors(self) -> Mapping[str, ManagedCursor]:
        return self._cursors.by_name

    @property
    def last_confirmed(self) -> Position:
        """The last durable entry; entry id -1 while there has never been one."""
        return self._index.last_confirmed

    @property
    def first_position(self) -> Position:
        """Entry 0 of the oldest ledger, whether or not it exists yet."""
        return self._index.first_position

    @property
    def total_size_bytes(self) -> int:
        return self._index.total_size_bytes()

    @property
    def properties(self) -> Mapping[str, str]:
        """The durable cursors."""
        return self._record.durable.properties

    @property
    def properties_to_come(self) -> Mapping[str, str]:
        """The properties once all pending changes are durable."""
        return self._record.queued.properties

    @property
    def created_at_ms(self) -> int:
        """0 for ledgers created before this was recorded."""
        return int(self.properties.get(CREATED_AT_MS, "0"))

    def damaged(self, ledger_id: int) -> tuple[Span, ...]:
        """The entries known to be unreadable."""
        return self._backend.damaged(ledger_id)

    def ledgers(self) -> list[LedgerInfo]:
        return self._index.infos()

    def next_position(self, position: Position) -> Position:
        """The next entry that exists or, at the end, the one that will be appended next."""
        return self._index.next_position(position)

    def previous_position(self, position: Position) -> Position:
        """The last entry before `position`; if there is none, entry -1 of the first ledger."""
        return self._index.previous_position(position)

    def count_between(self, after: Position, up_to: Position) -> int:
        """How many entries exist after `after`, up to and including `up_to`."""
        return self._index.count_between(after, up_to)

    # appending

    def append(
        self,
        entries: Sequence[bytes],
        message_counts: Sequence[int],
        done: Appended,
        tag: bytes = b"",
    ) -> bool:
        """Append consecutive entries to one ledger; returns at once. All of them carry `tag`.

        `done(first_position, None)` is called when they are durable, in the order of the appends,
        with `last_confirmed` already moved; `done(None, error)` if they are not. `entries` must not
        change afterwards.

        True: anything appended after this, to any managed ledger that does not hold its appends, is
        durable only if this is; see `LogStorage.append`.
        """
        if self.interceptor is not None:
            entries = self.interceptor.stamped(entries, message_counts)
        in_order = self._appender.append(entries, message_counts, done, tag)
        if not self._active:
            self.touch()
        return in_order

    @property
    def holds_appends(self) -> bool:
        """Whether appends currently wait for the next ledger."""
        return self._appender.is_holding

    async def append_one(self, entry: bytes, message_count: int = 1, tag: bytes = b"") -> Position:
        """Durable when it returns; cancelling it does not stop the append."""
        position: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

        def done(first: Position | None, error: Exception | None) -> None:
            if position.cancelled():
                return
            if first is not None:
                position.set_result(first)
            elif error is not None:
                position.set_exception(error)

        self.append([entry], [message_count], done, tag)
        return await position

    # reading

    def has_entries(self, position: Position, up_to: Position) -> bool:
        """Is there an entry at or after `position`, up to and including `up_to`?"""
        first = self._index.resolve(position)
        return first is not None and first <= up_to

    def read_cached(
        self, position: Position, up_to: Position, max_entries: int, max_bytes: int
    ) -> EntryRun | None:
        """Entries of one ledger from the first at or after `position`, up to `up_to`, at once.

        None: not in memory, or nothing to read. Returns at least one entry however large it is.
        """
        span = self._index.span(position, up_to)
        if span is None:
            return None
        run = self._backend.read_cached(*span, max_entries, max_bytes)
        if run is not None:
            self.read_entries += len(run.entries)
        return run

    async def read(
        self, position: Position, up_to: Position, max_entries: int, max_bytes: int
    ) -> EntryRun | None:
        """As `read_cached`, from disk if necessary. None: there is nothing to read."""
        while (span := self._index.span(position, up_to)) is not None:
            self._check_open()
            try:
                run = await self._backend.read(*span, max_entries, max_bytes)
                self.read_entries += len(run.entries)
                self.missed_entries += len(run.entries)
                return run
            except LedgerNotFound:
                self._check_open()  # the whole managed ledger may have been deleted
                if self._index.span(position, up_to) == span:
                    raise
                # it was trimmed meanwhile: continue after it
        return None

    async def read_whole(
        self, position: Position, up_to: Position, max_entries: int, max_bytes: int
    ) -> EntryRun | None:
        """As `read`, but skips damaged entries and logs them. For recovery of what is there."""
        while True:
            try:
                return await self.read(position, up_to, max_entries, max_bytes)
            except DamagedEntries as damaged:
                log.error("%s is opened without its damaged entries: %s", self.name, damaged)
                position = Position(damaged.ledger_id, damaged.last + 1)

    def has_entry(self, position: Position) -> bool:
        return position in self._index

    def message_count(self, position: Position) -> int | None:
        """How many messages the entry at `position` carries; 0 if there is no entry, None if it is
        not in memory.
        """
        if position not in self._index:
            return 0
        run = self._backend.read_cached(*position, position.entry_id, 1, 1)
        return None if run is None else run.message_counts[0]

    # cursors

    async def open_cursor(
        self, name: str, start: Position | None = None, properties: Mapping[str, str] | None = None
    ) -> ManagedCursor:
        """The durable cursor of that name, created if there is none.

        A new one starts with `start` as its mark-delete position, None being `last_confirmed`.
        """
        self._check_open()
        return await self._cursors.open(name, start, properties or {})

    def new_non_durable_cursor(self, name: str, start: Position | None = None) -> ManagedCursor:
        """It does not hold back trimming and disappears at a restart; the name must be free."""
        self._check_open()
        return self._cursors.new_non_durable(name, start)

    async def delete_cursor(self, name: str, only_while: KeyAt | None = None) -> None:
        """Idempotent. BadVersion if `only_while` does not hold."""
        await self._cursors.delete(name, only_while)
        self.touch()

    async def flush_cursors(self) -> None:
        """Make durable what has been acknowledged so far."""
        await self._cursors.flush_dirty()

    def write_cursors_within(self, interval_ms: int) -> None:
        """Applies from now on, also to pending writes."""
        self.config = replace(self.config, cursor_flush_interval_ms=interval_ms)
        self._cursors.tell_again()

    # properties

    def set_property(self, key: str, value: str) -> asyncio.Future[None]:
        """As `update_properties`."""
        return self.update_properties({key: value})

    def update_properties(self, changes: Mapping[str, str | None]) -> asyncio.Future[None]:
        """None removes a property. It takes effect before every later append: on a storage that has
        no common order of both, appends wait for it.
        """
        self._check_open()
        properties = dict(self._record.queued.properties)
        for key, value in changes.items():
            if value is None:
                properties.pop(key, None)
            else:
                properties[key] = value
        written = self._record.write(replace(self._record.queued, properties=properties))
        if not self._backend.is_ordered:
            self._appender.hold_until(written)
        return written

    @property
    def keeps_appends_whole(self) -> bool:
        return self._backend.keeps_appends_whole

    @property
    def is_shared(self) -> bool:
        """Whether other processes may open it next."""
        return self._backend.is_shared

    # rolling over and trimming

    async def roll_over(self) -> None:
        """Close the current ledger and continue in a new one; does nothing if it is empty."""
        self._check_open()
        await self._rollover.now()

    def roll_over_when_old(self) -> None:
        """Close the current ledger if it has reached the maximum age."""
        self._rollover.when_old()

    async def trim(self, retention: Retention | None = None) -> None:
        """Delete the ledgers that every durable cursor has consumed and that retention (the
        configured one, unless another is given) releases: first from the index, so that nothing
        comes to depend on them, then from the list, then from disk, together with those that an
        earlier trim could not delete.
        """
        self._trimming = self._trimming or asyncio.Lock()
        async with self._trimming:  # by then a refused one has been rolled back
            self._check_open()
            if released := self._releasable(retention or self.config.retention):
                await self._let_go(released)
        ids = self._record.deletable
        await asyncio.gather(*map(self._backend.delete_ledger, ids))
        self._record.forget_deleted(ids)

    async def _let_go(self, released: list[LedgerInfo]) -> None:
        ids = [info.ledger_id for info in released]
        self._index.remove(ids)
        self._cursors.skip_removed()
        try:
            await self._write_without(ids)
        except ManagedLedgerError:
            self._index.restore(released)
            raise
        for ledger_id in ids:
            for trimmed in self.on_trimmed:
                trimmed(ledger_id)

    # housekeeping

    @property
    def housekeeper(self) -> Housekeeper:
        return self._keeper.housekeeper

    def _cursors_became_dirty(self) -> None:
        self._keeper.became_dirty(self)

    @property
    def has_old_ledgers(self) -> bool:
        """Besides the current one: closed ledgers, or released ones not yet deleted."""
        return self._index.has_closed or bool(self._record.queued.deleting)

    def touch(self) -> None:
        """There was activity after which a rollover or trim may be due."""
        if not self._active and self._closed is None:
            self._active = True
            self._keeper.became_active(self)

    def settle_down(self) -> None:
        """A visit begins; later activity schedules the next one."""
        self._active = False
        self._looked_after_ms = self._time.now_ms()
        for visited in self.on_visit:
            visited()

    def next_visit_s(self) -> float | None:
        """When a rollover or trim is due without any activity; None: never. What was due when the
        last visit began has been done; what became due since then has not.
        """
        due_ms = []
        if (rollover_ms := self._rollover.due_ms) is not None:
            due_ms.append(rollover_ms)
        oldest, keep_ms = self._rollover.aged()[0], self.config.retention.time_ms
        if oldest.closed_at_ms is not None and keep_ms >= 0:
            due_ms.append(oldest.closed_at_ms + keep_ms)
        next_ms = min((due for due in due_ms if due > self._looked_after_ms), default=None)
        return None if next_ms is None else max(0, next_ms - self._time.now_ms()) / 1000

    # ending

    async def close(self) -> None:
        """Wait until appends are durable and write the cursors. Idempotent.

        Raises if the cursors cannot be written; the ledger is closed even then.
        """
        if self._closing is None:
            self._closing = shared_task(self._close(f"{self.name} is closed; open it again"))
        elif self._closing.done():
            return  # an earlier caller got the outcome
        await asyncio.shield(self._closing)

    async def delete(self, only_while: KeyAt | None = None) -> None:
        """Delete the managed ledger, its entries and its cursors; see managed_ledger.deletion."""
        await self._stop(LedgerClosed(f"{self.name} was deleted"))
        self._break_cycles()
        await delete_managed_ledger(self.name, self._backend, self._record, only_while)

    def _check_open(self) -> None:
        if self._closed is not None:
            # A new instance: the traceback stays attached to it.
            raise LedgerClosed(*self._closed.args)

    async def _close(self, reason: str) -> None:
        try:
            if self._closed is None:
                await self._stop(LedgerClosed(reason))
                await self._cursors.finish()
        finally:
            self._break_cycles()
            self._keeper.was_closed(self)

    def _break_cycles(self) -> None:
        """Breaks reference cycles, so that this is freed without a garbage collection."""
        self._cursors.retire()
        self._appender.on_full = nobody_cares
        self._appender.on_trouble = nobody_minds
        self._rollover.on_ended, self._rollover.noted = nobody_cares, as_it_is
        self.on_trimmed, self.kept_from, self.on_visit = (), (), ()

    async def _stop(self, closed: LedgerClosed) -> None:
        """Accept no more appends, and complete pending ones and pending changes of the list: the
        next opening begins with what is durable.
        """
        await self._rollover.settled()
        if not self._backend.is_ordered:
            await self._record.settled()  # appends may wait for it, and fill a ledger then
            await self._rollover.settled()
        self._closed = closed
        self._rollover.stop()
        self._end_visits()
        self._appender.refuse(closed)
        await self._appender.drained()
        await self._record.settled()

    def _fence(self, error: Exception) -> None:
        """Another writer owns the list: stop before anything is acknowledged wrongly."""
        log.error("%s stops: %s", self.name, error)
        self._closed = LedgerClosed(f"{self.name} was fenced ({error}); open it again")
        self._rollover.stop()
        self._end_visits()
        self._appender.refuse(self._closed)
        self._keeper.was_fenced(self)

    def _end_visits(self) -> None:
        if self.visit is not None:
            self.visit.cancel()
            self.visit = None

    def _rolled_over(self, error: ManagedLedgerError | None) -> None:
        if error is None:
            self.touch()
        elif self._closed is None:
            self._fence(error)

    def _releasable(self, retention: Retention) -> list[LedgerInfo]:
        slowest = self._cursors.slowest_durable()
        for kept_from in self.kept_from:
            needed = kept_from().before
            slowest = needed if slowest is None else min(slowest, needed)
        return releasable(self._rollover.aged(), slowest, retention, self._time.now_ms())

    def _write_without(self, ids: Sequence[int]) -> asyncio.Future[None]:
        record = self._record.queued
        kept = tuple(info for info in record.ledgers if info.ledger_id not in ids)
        listed = replace(record, ledgers=kept, deleting=(*record.deleting, *ids))
        return self._record.write(self._noted(listed))

    def _noted(self, listed: LedgerList) -> LedgerList:
        if self.interceptor is None:
            return listed
        return replace(listed, properties={**listed.properties, **self.interceptor.properties()})
