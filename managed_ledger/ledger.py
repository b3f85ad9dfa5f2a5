"""A managed ledger: an endless log with cursors, made of a list of ledgers; only the last is open.

The list record is the source of truth about which ledgers exist. It is written by compare-and-set,
which keeps out a second writer, before a new ledger is used and before the data of a dropped ledger
is deleted. `rollover.py` creates the next ledger, `trimmer.py` deletes those that are consumed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from managed_ledger.appender import Appended, Appender, ignore_trouble
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursor import ManagedCursor
from managed_ledger.cursors import Cursors, do_nothing
from managed_ledger.deletion import delete_managed_ledger
from managed_ledger.errors import DamagedEntries, LedgerClosed, LedgerNotFound, ManagedLedgerError
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
from managed_ledger.storage.operations import settle
from managed_ledger.trim import Retention
from managed_ledger.trimmer import Trimmer

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
        self.on_visit: tuple[Callable[[], None], ...] = ()  # called some time after activity
        self.interceptor: Interceptor | None = None
        self.read_entries = self.missed_entries = 0  # of all reads; of reads from disk
        self._keeper = keeper
        self.visit: Visit | None = None  # the next visit by the housekeeper
        self._active = False
        self._backend = backend
        self._time = time
        self._index = index
        self.span = index.span
        self._record = record
        self._cursors = cursors
        limits = config.max_entries_per_ledger, config.max_size_per_ledger_bytes
        self._appender = Appender(backend, index, *limits, on_full=do_nothing)
        self.call_ahead_of_held = self._appender.call_ahead_of_held
        self.queued_messages = self._appender.queued_messages
        self.call_after_queued = self._appender.call_after_queued
        self._rollover = Rollover(
            name, backend, time, config, index, record, self._appender, self._rolled_over
        )
        self._rollover.noted = self._noted
        self.trimmer = Trimmer(backend, time, index, record, cursors, self._rollover)
        self._appender.on_full = self._rollover.when_full
        self._appender.on_trouble = self._rollover.when_troubled
        self._looked_after_ms = self._time.now_ms()
        self._closing: asyncio.Task[None] | None = None
        self._closed: LedgerClosed | None = None
        cursors.on_dirty = self._cursors_became_dirty

    @property
    def closed(self) -> bool:
        """Whether it was closed, deleted, or fenced by another writer."""
        return self._closed is not None

    # contents

    @property
    def cursors(self) -> Mapping[str, ManagedCursor]:
        return self._cursors.by_name

    @property
    def last_confirmed(self) -> Position:
        """The last durable entry; entry id -1 if there has never been an entry."""
        return self._index.last_confirmed

    @property
    def first_position(self) -> Position:
        """Entry 0 of the oldest ledger, whether or not that entry exists yet."""
        return self._index.first_position

    @property
    def total_size_bytes(self) -> int:
        return self._index.total_size_bytes()

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties that are durable."""
        return self._record.durable.properties

    @property
    def still_owned(self) -> KeyAt:
        """For `only_while`: no other process has opened it since."""
        return self._record.as_queued

    @property
    def properties_to_come(self) -> Mapping[str, str]:
        """The properties once all pending changes are durable."""
        return self._record.queued.properties

    @property
    def created_at_ms(self) -> int:
        """Milliseconds since 1970; 0 if it was created before this was recorded."""
        return int(self.properties.get(CREATED_AT_MS, "0"))

    def damaged(self, ledger_id: int) -> tuple[Span, ...]:
        """The entries known to be unreadable."""
        return self._backend.damaged(ledger_id)

    def ledgers(self) -> list[LedgerInfo]:
        return self._index.infos()

    def next_position(self, position: Position) -> Position:
        """The first existing entry after `position` or, at the end, the next one to be appended."""
        return self._index.next_position(position)

    def previous_position(self, position: Position) -> Position:
        """The last entry before `position`; if there is none, entry -1 of the first ledger."""
        return self._index.previous_position(position)

    def count_between(self, after: Position, up_to: Position) -> int:
        """The number of existing entries after `after`, up to and including `up_to`."""
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

        Returns True if any later append, to any managed ledger that does not hold its appends, is
        durable only if this one is; see `LogStorage.append`.
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
        """Append one entry; durable when it returns. Cancelling it does not stop the append."""
        done: asyncio.Future[Position | None] = asyncio.get_running_loop().create_future()
        outcome = partial(settle, done)
        self.append([entry], [message_count], outcome, tag)
        position = await done
        assert position is not None
        return position

    # reading

    def has_entries(self, position: Position, up_to: Position) -> bool:
        """Whether there is an entry at or after `position`, up to and including `up_to`."""
        return self._index.span(position, up_to) is not None

    def read_cached(
        self, position: Position, up_to: Position, max_entries: int, max_bytes: int
    ) -> EntryRun | None:
        """Entries of one ledger from memory: from the first at or after `position`, up to `up_to`.

        None if they are not in memory or there is nothing to read; else at least one, of any size.
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
        """As `read_cached`, from disk if necessary. None if there is nothing to read."""
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
                # the ledger was trimmed meanwhile: continue after it
        return None

    async def read_whole(
        self, position: Position, up_to: Position, max_entries: int, max_bytes: int
    ) -> EntryRun | None:
        """As `read`, but logs damaged entries and skips them. For recovery from the others."""
        while True:
            try:
                return await self.read(position, up_to, max_entries, max_bytes)
            except DamagedEntries as damaged:
                log.error("%s is opened without its damaged entries: %s", self.name, damaged)
                position = Position(damaged.ledger_id, damaged.last + 1)

    def has_entry(self, position: Position) -> bool:
        return position in self._index

    def message_count(self, position: Position) -> int | None:
        """The number of messages in the entry at `position`; 0 if there is no entry, None if it is
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

        The mark-delete position of a new cursor is `start`; None: `last_confirmed`.
        """
        self._check_open()
        return await self._cursors.open(name, start, properties or {})

    def new_non_durable_cursor(self, name: str, start: Position | None = None) -> ManagedCursor:
        """A cursor that does not hold back trimming and ends with the process; the name must be
        free.
        """
        self._check_open()
        return self._cursors.new_non_durable(name, start)

    async def delete_cursor(self, name: str, only_while: KeyAt | None = None) -> None:
        """Idempotent. Raises BadVersion if `only_while` does not hold."""
        await self._cursors.delete(name, only_while)
        self.touch()

    async def flush_cursors(self) -> None:
        """All acknowledgements so far are durable when this returns."""
        await self._cursors.flush_dirty()

    def write_cursors_within(self, interval_ms: int) -> None:
        """Set the flush interval of cursors; also applies to pending writes."""
        self.config = replace(self.config, cursor_flush_interval_ms=interval_ms)
        self._cursors.tell_again()

    # properties

    def set_property(self, key: str, value: str) -> asyncio.Future[None]:
        """As `update_properties`, for one property."""
        return self.update_properties({key: value})

    def update_properties(self, changes: Mapping[str, str | None]) -> asyncio.Future[None]:
        """The value None removes a property. The change takes effect before every later append: on
        a storage without a common order of both, appends wait for the change.
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
        """Whether other processes may take over the managed ledger."""
        return self._backend.is_shared

    # rolling over and trimming

    async def roll_over(self) -> None:
        """Close the current ledger and continue in a new one, unless the current one is empty."""
        self._check_open()
        await self._rollover.now()

    def roll_over_when_old(self) -> None:
        """Close the current ledger if it has reached the maximum age."""
        self._rollover.when_old()

    async def trim(self, retention: Retention | None = None) -> None:
        """Delete the ledgers that every durable cursor has consumed and that retention (by default
        the configured one) releases.
        """
        await self.trimmer.trim(retention or self.config.retention, self._check_open)

    # housekeeping

    @property
    def housekeeper(self) -> Housekeeper:
        return self._keeper.housekeeper

    def _cursors_became_dirty(self) -> None:
        self._keeper.became_dirty(self)

    @property
    def has_old_ledgers(self) -> bool:
        """Whether there are closed ledgers, or released ledgers that are not deleted yet."""
        return self._index.has_closed or bool(self._record.queued.deleting)

    def touch(self) -> None:
        """Call after activity that may make a rollover or trim due."""
        if not self._active and self._closed is None:
            self._active = True
            self._keeper.became_active(self)

    def settle_down(self) -> None:
        """Call when a visit begins; later activity schedules the next one."""
        self._active = False
        self._looked_after_ms = self._time.now_ms()
        for visited in self.on_visit:
            visited()

    def next_visit_s(self) -> float | None:
        """Seconds until a rollover or trim is due without further activity; None: never. Work that
        was due when the last visit began has been done; work that became due later has not.
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
        """Wait until all appends are durable, and write the cursors. Idempotent.

        Raises if the cursors cannot be written; the managed ledger is closed even then.
        """
        if self._closing is None:
            self._closing = shared_task(self._close(f"{self.name} is closed; open it again"))
        elif self._closing.done():
            return  # an earlier caller has had the outcome
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
        """Break reference cycles, so that this object is freed without a garbage collection."""
        self._cursors.retire()
        self._appender.on_full = do_nothing
        self._appender.on_trouble = ignore_trouble
        self._rollover.on_ended, self._rollover.noted = do_nothing, as_it_is
        self.trimmer.close()
        self.on_visit = ()

    async def _stop(self, closed: LedgerClosed) -> None:
        """Refuse new appends, and complete pending appends and changes of the list: the next
        opening starts from the durable state.
        """
        await self._rollover.settled()
        if not self._backend.is_ordered:
            await self._record.settled()  # held appends may follow it and fill a ledger
            await self._rollover.settled()
        self._closed = closed
        self._rollover.stop()
        self._end_visits()
        self._appender.refuse(closed)
        await self._appender.drained()
        await self._record.settled()

    def _fence(self, error: Exception) -> None:
        """Another writer owns the list: stop before any append is wrongly confirmed."""
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

    def _noted(self, listed: LedgerList) -> LedgerList:
        if self.interceptor is None:
            return listed
        return replace(listed, properties={**listed.properties, **self.interceptor.properties()})
