"""A durable log that can replace its past by a snapshot, so replay is bounded by the live state.

    [entries before]  [snapshot entries]  [entries since]
                    ^ mark-delete position of the log's own cursor: replay begins after it

The records of one turn of the event loop become one entry, because an entry costs more than a
record. If the storage has one order for all logs, the writer of a record can append to other logs
entries that are durable only if the record is (`in_order`): both are in one commit of the storage.

A snapshot consists of ordinary entries, which are encoded and appended one by one; other work runs
in between. Each entry describes part of the live state at that instant, after everything logged
before it. So a record logged in between may refer to state that a later snapshot entry creates.
Replay ignores such a record, because that later entry includes its effect. Once all entries, and
the data that the caller stores elsewhere, are durable, the mark-delete position moves and the
ledgers before it are trimmed. After a crash before that, replay reads the old entries and then part
or all of the snapshot: applying must tolerate the repetition.
"""

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Final, Generic, TypeVar

from managed_ledger.appender import Appended
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import CorruptStorage, DamagedEntries
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.interceptor import Interceptor
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from managed_ledger.storage.operations import call_safely
from pybroker.transaction.this_turn import WouldWait, this_turn

# Entries replaced by a snapshot are useless: no retention, and frequent rollovers to delete them.
_CONFIG: Final = ManagedLedgerConfig(min_rollover_time_ms=60_000)
_READ_ENTRIES: Final = 1000
_READ_BYTES: Final = 4 * 1024 * 1024
_REPLAYED_A_TURN_BYTES: Final = 32 * 1024
_RECORDS_PER_ENTRY: Final = 500
_WITHOUT_HURRY_S: Final = 0.05
PARTS_PER_ENTRY: Final = 500  # of a snapshot; an entry is encoded without interruption

R = TypeVar("R")
Done = Callable[[Exception | None], None]
InOrder = Callable[[], None]

log = logging.getLogger(__name__)


class SnapshotLog(Generic[R]):
    def __init__(
        self,
        ledger: ManagedLedger,
        cursor: ManagedCursor,
        encode: Callable[[Sequence[R]], bytes],
        tag: bytes = b"",
    ) -> None:
        self._ledger = ledger
        self._cursor = cursor
        self._encode = encode
        self._tag = tag
        self._turn = this_turn()
        self._gathered: list[R] = []  # the records of this turn, and earlier ones without hurry
        self._gathered_done: list[Done] = []
        self._in_order: list[InOrder] = []
        self._not_later: list[int] = []  # indexes of gathered records that must not be held
        self._writes_soon = False
        self._timer: asyncio.TimerHandle | None = None  # set while records without hurry wait
        self.records_since_snapshot = 0
        self._replacing = asyncio.Lock()
        # Called for every failed append, whether or not a caller waits for it.
        self.on_failure: Callable[[Exception], None] = lambda error: None

    @classmethod
    async def open(
        cls,
        factory: ManagedLedgerFactory,
        name: str,
        cursor_name: str,
        encode: Callable[[Sequence[R]], bytes],
        tag: bytes = b"",
    ) -> "SnapshotLog[R]":
        """`encode` makes one entry of some records; the storage tags every entry with `tag`."""
        ledger = await factory.open(name, _CONFIG)
        try:
            return cls(ledger, await ledger.open_cursor(cursor_name, None), encode, tag)
        except BaseException:  # nobody else would close the ledger
            await ledger.close()
            raise

    @property
    def name(self) -> str:
        return self._ledger.name

    @property
    def properties(self) -> Mapping[str, str]:
        return self._ledger.properties

    def set_property(self, key: str, value: str) -> Awaitable[None]:
        """Set one property; see ManagedLedger.update_properties."""
        return self._ledger.set_property(key, value)

    def intercept(self, interceptor: Interceptor) -> None:
        """`interceptor` sees all entries appended from now on."""
        self._ledger.interceptor = interceptor

    async def last_entry(self) -> bytes | None:
        """The last entry of the log, even if replay skips it; None if all entries were deleted."""
        last = self._ledger.last_confirmed
        run = await self._read(last, last) if self._ledger.has_entry(last) else None
        return run.entries[0] if run and run.entries else None

    async def replay(self, apply: Callable[[bytes], int]) -> None:
        """Pass every entry after the mark-delete position to `apply`, oldest first; `apply` returns
        the number of records in the entry. Raises CorruptStorage.
        """
        async for entry in self.entries():
            self.records_since_snapshot += apply(entry)

    async def entries(self) -> AsyncIterator[bytes]:
        """The entries to replay, for a caller that counts records itself. Lets other work run."""
        position, end = self._cursor.mark_delete_position.after, self._ledger.last_confirmed
        given = 0
        while run := await self._read(position, end):
            for entry in run.entries:
                yield entry
                given += len(entry)
                if given >= _REPLAYED_A_TURN_BYTES:
                    given = 0
                    await asyncio.sleep(0)
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))

    async def _read(self, position: Position, end: Position) -> EntryRun | None:
        try:
            return await self._ledger.read(position, end, _READ_ENTRIES, _READ_BYTES)
        except DamagedEntries as damage:  # this log must not skip entries
            raise CorruptStorage(
                f"{self.name} is damaged: {damage.what}; stop the broker and restore the data "
                "directory from a backup"
            ) from damage

    def append(self, record: R, done: Done, in_order: InOrder | None = None) -> None:
        """Queue the record now; `done` is called when it is durable, or with the error.

        `in_order`, if called at all, is called before `done`, once the record is queued in the
        storage. Entries appended during the call, to logs that are not holding appends, are durable
        only if the record is. If the record fails, its `done` is called before theirs.
        """
        # Not after gathering: the caller applies a record once it is queued, and `in_order` may be
        # called only for applied records.
        if len(self._gathered) >= _RECORDS_PER_ENTRY:
            self._write_gathered()
        if in_order is not None:
            self._in_order.append(in_order)
        self.records_since_snapshot += 1
        self._gathered.append(record)
        self._gathered_done.append(done)
        if not self._writes_soon:
            self._writes_soon = True
            self._turn.will_write(self._write_gathered)

    def append_not_later(self, record: R, done: Done) -> None:
        """Like `append`, for use within `in_order`: the record is queued in the storage in the same
        turn, or fails with WouldWait.
        """
        if len(self._gathered) >= _RECORDS_PER_ENTRY:
            self._write_gathered()
        self._not_later.append(len(self._gathered))
        self.append(record, done)

    def append_without_hurry(self, record: R, done: Done) -> None:
        """Like `append`, but the record is written with the next one, or after a while."""
        if len(self._gathered) >= _RECORDS_PER_ENTRY:
            self._write_gathered()
        self.records_since_snapshot += 1
        self._gathered.append(record)
        self._gathered_done.append(done)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_WITHOUT_HURRY_S, self._write_after_a_while)

    def _write_after_a_while(self) -> None:
        self._timer = None
        self._write_gathered()

    def abandon(self, error: Exception) -> None:
        """Drop and fail the records that are not queued in the storage yet: they depend on records
        that have failed.
        """
        done = self._gathered_done
        self._gathered, self._gathered_done, self._in_order = [], [], []
        self._not_later = []
        self._tell(done, error)

    def append_together(self, records: Sequence[R], done: Done) -> None:
        """Like `append`, for several records in one entry: durable together or not at all."""
        self._write_gathered()
        self.records_since_snapshot += len(records)
        self._gathered, self._gathered_done = list(records), [done]
        self._write_gathered()

    def _write_gathered(self) -> None:
        self._writes_soon = False
        if self._not_later:
            self._leave_out_not_later()
        if not self._gathered:
            return
        records, done, in_order = self._gathered, self._gathered_done, self._in_order
        self._gathered, self._gathered_done, self._in_order = [], [], []
        try:
            entry = self._encode(records)
        except Exception as error:  # no record is written, as if the storage had refused the entry
            log.exception("%s: %d records cannot be written", self.name, len(records))
            self._written(done, None, error)
        else:
            if self._append(entry, partial(self._written, done)) and in_order:
                for tell in in_order:
                    call_safely(tell)
                self._turn.write_now()

    def _leave_out_not_later(self) -> None:
        """Fail the records that must not be held, if the ledger is holding appends now."""
        not_later, self._not_later = set(self._not_later), []
        if not self._ledger.holds_appends:
            return
        all_done = self._gathered_done
        gathered = range(len(all_done))
        self._gathered = [self._gathered[at] for at in gathered if at not in not_later]
        self._gathered_done = [all_done[at] for at in gathered if at not in not_later]
        self.records_since_snapshot -= len(not_later)
        for at in sorted(not_later):
            all_done[at](WouldWait(f"{self.name} is switching to a new ledger"))

    def _written(
        self, done: Sequence[Done], position: Position | None, error: Exception | None
    ) -> None:
        if error is not None:
            self.on_failure(error)
        self._tell(done, error)

    def _tell(self, done: Sequence[Done], error: Exception | None) -> None:
        for tell in done:
            try:
                tell(error)
            except Exception:  # an error in one callback must not affect the others
                log.exception("%s: a callback waiting for a record failed", self.name)

    async def replace_past(
        self,
        snapshot: Iterable[R | None],
        weigh: Callable[[R], int],
        remote: Callable[[], Awaitable[None]],
    ) -> None:
        """Append `snapshot`, starting now, and drop everything before it.

        Records are requested as they are encoded, a limited number per turn; `weigh` returns the
        number of parts in a record, at most PARTS_PER_ENTRY. The iterable may yield None to end a
        turn in which it has examined much and found little. `elsewhere` makes durable the effects
        of the dropped entries that are stored outside this log.
        """
        async with self._replacing:
            replaced, self.records_since_snapshot = self.records_since_snapshot, 0
            try:
                begin = await self._append_durably(_by_weight(snapshot, weigh))
                await remote()
                self._cursor.mark_delete(begin.before)
                await self._cursor.flush()
            except BaseException:
                self.records_since_snapshot += replaced
                raise

    async def _append_durably(self, snapshot: Iterable[Sequence[R] | None]) -> Position:
        """Append the snapshot; returns the position of its first entry once all are durable."""
        appended: list[asyncio.Future[Position]] = []
        for records in snapshot:
            if records is not None:
                self._write_gathered()  # applied records: the snapshot includes their effects
                appended.append(self._append_snapshot(self._encode(records)))
            await asyncio.sleep(0)
        try:
            first, *_ = await asyncio.gather(*appended)
        finally:
            appended.clear()  # the traceback of an error refers to this frame: avoid a cycle
        return first

    def _append_snapshot(self, entry: bytes) -> asyncio.Future[Position]:
        durable: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

        def written(position: Position | None, error: Exception | None) -> None:
            if error is not None:
                self.on_failure(error)
            if durable.done():
                return  # the caller was cancelled
            if position is not None:
                durable.set_result(position)
            elif error is not None:
                durable.set_exception(error)
                durable.exception()  # mark as retrieved: nobody may be waiting

        self._append(entry, written)
        return durable

    def _append(self, entry: bytes, done: Appended) -> bool:
        return self._ledger.append([entry], [1], done, self._tag)

    async def close(self) -> None:
        """Wait for a snapshot in progress, then write the gathered records and close. Without the
        wait, the next replay could apply old records to state that the caller has moved since.
        """
        async with self._replacing:
            if self._timer is not None:
                self._timer.cancel()
            self._write_gathered()
            await self._ledger.close()


def _by_weight(records: Iterable[R | None], weigh: Callable[[R], int]) -> Iterator[list[R] | None]:
    """Yields lists of records for one entry each, at least one list; None ends a turn."""
    some: list[R] = []
    weight, empty = 0, True
    for record in records:
        if record is None:  # the turn ends, and later records describe a later state
            yield some if some or empty else None
            some, weight, empty = [], 0, False
            continue
        some.append(record)
        weight += weigh(record)
        if weight >= PARTS_PER_ENTRY:
            yield some
            some, weight, empty = [], 0, False
    if some or empty:
        yield some
