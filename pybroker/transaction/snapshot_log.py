"""A durable log that can replace its past by a snapshot, so that replay is bounded by what lives.

    [entries before]  [snapshot entries]  [entries since]
                    ^ mark-delete of the log's own cursor: replay begins behind it

Records that come within one tick become one entry, for an entry costs more than a record. Where
the storage has one order for all logs, whoever logs a record can append to other logs what is
durable only if the record is (`in_order`): one commit of the storage takes both.

A snapshot is ordinary entries, made and appended one by one; others have the loop in between. Each
says how a part of what lives is at that instant, when all that was logged before has been applied.
So what is logged meanwhile may speak of what only a later entry brings: applying passes over it,
for that entry has it, too. Once all are durable, and whatever else the caller keeps elsewhere, the
mark-delete moves and the ledgers before it are trimmed. A crash before that replays the old entries
and then, in part or whole, the snapshot: applying must bear the repetition.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import CorruptStorage, DamagedEntries
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from managed_ledger.storage.operations import call_safely
from pybroker.transaction.this_turn import WouldWait, this_turn

# What a snapshot replaced is of no use: no retention, and new ledgers soon, so that it can go.
_CONFIG: Final = ManagedLedgerConfig(min_rollover_time_ms=60_000)
_READ_ENTRIES: Final = 1000
_READ_BYTES: Final = 4 * 1024 * 1024
_RECORDS_PER_ENTRY: Final = 500
_WITHOUT_HURRY_S: Final = 0.05
PARTS_PER_ENTRY: Final = 500  # of a snapshot: so many are encoded in one go

R = TypeVar("R")
Done = Callable[[Exception | None], None]
InOrder = Callable[[], None]

log = logging.getLogger(__name__)


class SnapshotLog(Generic[R]):
    def __init__(
        self, ledger: ManagedLedger, cursor: ManagedCursor, encode: Callable[[Sequence[R]], bytes]
    ) -> None:
        self._ledger = ledger
        self._cursor = cursor
        self._encode = encode
        self._gathered: list[R] = []  # in this tick, and what came before it without hurry
        self._gathered_done: list[Done] = []
        self._in_order: list[InOrder] = []
        self._not_later: list[int] = []  # which of the gathered are not to be held
        self._writes_soon = False
        self._timer: asyncio.TimerHandle | None = None  # while something came without hurry
        self.records_since_snapshot = 0
        self._replacing = asyncio.Lock()
        # Told of every append that failed, whether or not anybody waits for it.
        self.on_failure: Callable[[Exception], None] = lambda error: None

    @classmethod
    async def open(
        cls,
        factory: ManagedLedgerFactory,
        name: str,
        cursor_name: str,
        encode: Callable[[Sequence[R]], bytes],
    ) -> "SnapshotLog[R]":
        """`encode` makes one entry of some records."""
        ledger = await factory.open(name, _CONFIG)
        return cls(ledger, await ledger.open_cursor(cursor_name, None), encode)

    @property
    def name(self) -> str:
        return self._ledger.name

    async def replay(self, apply: Callable[[bytes], int]) -> None:
        """Feed every entry that still counts to `apply`, oldest first; it returns the number of its
        records. Raises CorruptStorage.
        """
        position, end = self._cursor.mark_delete_position.after, self._ledger.last_confirmed
        while run := await self._read(position, end):
            self.records_since_snapshot += sum(map(apply, run.entries))
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))

    async def _read(self, position: Position, end: Position) -> EntryRun | None:
        try:
            return await self._ledger.read(position, end, _READ_ENTRIES, _READ_BYTES)
        except DamagedEntries as damage:  # which nobody may skip here
            raise CorruptStorage(
                f"{self.name} is damaged: {damage.what}; stop the broker and restore the data "
                "directory from a backup"
            ) from damage

    def append(self, record: R, done: Done, in_order: InOrder | None = None) -> None:
        """Queue it, now; `done` is told when it is durable, or why it is not.

        `in_order` is called before that, if at all: while it runs, whatever is appended to a log
        that does not hold it is durable only if the record is. If the record fails, `done` hears
        of it first.
        """
        if in_order is not None:
            self._in_order.append(in_order)
        self._gather(record, done)
        if len(self._gathered) >= _RECORDS_PER_ENTRY:
            self._write_gathered()
        elif not self._writes_soon:
            self._writes_soon = True
            this_turn().will_write(self._write_gathered)

    def append_not_later(self, record: R, done: Done) -> None:
        """As `append`, for who is told `in_order`: goes to the storage before that is over, or
        fails with WouldWait.
        """
        self._not_later.append(len(self._gathered))
        self.append(record, done)

    def append_without_hurry(self, record: R, done: Done) -> None:
        """As `append`; it is written with the next one, or after a while."""
        self._gather(record, done)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_WITHOUT_HURRY_S, self._write_after_a_while)

    def _gather(self, record: R, done: Done) -> None:
        self.records_since_snapshot += 1
        self._gathered.append(record)
        self._gathered_done.append(done)

    def _write_after_a_while(self) -> None:
        self._timer = None
        self._write_gathered()

    def abandon(self, error: Exception) -> None:
        """Drop what is not with the storage yet, and say so: it was decided on top of what has
        failed.
        """
        done = self._gathered_done
        self._gathered, self._gathered_done, self._in_order = [], [], []
        self._not_later = []
        self._tell(done, error)

    def append_together(self, records: Sequence[R], done: Done) -> None:
        """As `append`, in one entry: durable together or not at all."""
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
        except Exception as error:  # nothing of them is written, as if the storage had refused it
            log.exception("%s: %d records cannot be written", self.name, len(records))
            self._written(done, None, error)
        else:
            if self._ledger.append([entry], [1], partial(self._written, done)) and in_order:
                for tell in in_order:
                    call_safely(tell)
                this_turn().write_now()

    def _leave_out_not_later(self) -> None:
        """All of them, where what is written now would be held."""
        not_later, self._not_later = set(self._not_later), []
        if not self._ledger.holds_appends:
            return
        all_done = self._gathered_done
        gathered = range(len(all_done))
        self._gathered = [self._gathered[at] for at in gathered if at not in not_later]
        self._gathered_done = [all_done[at] for at in gathered if at not in not_later]
        self.records_since_snapshot -= len(not_later)
        for at in sorted(not_later):
            all_done[at](WouldWait(f"{self.name} goes on in a new ledger"))

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
            except Exception:  # one record's trouble must not keep the others from hearing
                log.exception("%s: what waited for a record failed", self.name)

    async def replace_past(
        self,
        snapshot: Iterable[R],
        weigh: Callable[[R], int],
        elsewhere: Callable[[], Awaitable[None]],
    ) -> None:
        """Append `snapshot`, beginning now, and let go of everything before it.

        Its records are asked for as they are encoded, some in a turn; `weigh` says how many parts
        one has, PARTS_PER_ENTRY at most. `elsewhere` makes durable what the dropped entries led to
        outside this log.
        """
        async with self._replacing:
            replaced, self.records_since_snapshot = self.records_since_snapshot, 0
            try:
                begin = await self._append_durably(_by_weight(snapshot, weigh))
                await elsewhere()
                self._cursor.mark_delete(begin.before)
                await self._cursor.flush()
            except BaseException:
                self.records_since_snapshot += replaced
                raise

    async def _append_durably(self, snapshot: Iterable[Sequence[R]]) -> Position:
        """Of its first entry."""
        appended: list[asyncio.Future[Position]] = []
        for records in snapshot:
            self._write_gathered()  # it has been applied: the snapshot comes behind it
            appended.append(self._append_snapshot(self._encode(records)))
            await asyncio.sleep(0)
        try:
            first, *_ = await asyncio.gather(*appended)
        finally:
            appended.clear()  # a failure's traceback keeps this frame, which must not keep it
        return first

    def _append_snapshot(self, entry: bytes) -> asyncio.Future[Position]:
        durable: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

        def written(position: Position | None, error: Exception | None) -> None:
            if error is not None:
                self.on_failure(error)
            if durable.done():
                return  # whoever waited was cancelled
            if position is not None:
                durable.set_result(position)
            elif error is not None:
                durable.set_exception(error)
                durable.exception()  # retrieved: nobody may be waiting

        self._ledger.append([entry], [1], written)
        return durable

    async def close(self) -> None:
        """Who is replacing the past has done so by then: what it has moved must not be told of what
        went before by the next replay.
        """
        async with self._replacing:
            if self._timer is not None:
                self._timer.cancel()
            self._write_gathered()
            await self._ledger.close()


def _by_weight(records: Iterable[R], weigh: Callable[[R], int]) -> Iterator[list[R]]:
    """At least one list."""
    some: list[R] = []
    weight, empty = 0, True
    for record in records:
        some.append(record)
        weight += weigh(record)
        if weight >= PARTS_PER_ENTRY:
            yield some
            some, weight, empty = [], 0, False
    if some or empty:
        yield some
