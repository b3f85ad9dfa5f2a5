"""A durable log that can replace its past by a snapshot, so that replay is bounded by what lives.

    [entries before]  [snapshot entries]  [entries since]
                    ^ mark-delete of the log's own cursor: replay begins behind it

Records that come within one tick become one entry, for an entry costs more than a record.

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

# What a snapshot replaced is of no use: no retention, and new ledgers soon, so that it can go.
_CONFIG: Final = ManagedLedgerConfig(min_rollover_time_ms=60_000)
_READ_ENTRIES: Final = 1000
_READ_BYTES: Final = 4 * 1024 * 1024
_RECORDS_PER_ENTRY: Final = 500
PARTS_PER_ENTRY: Final = 500  # of a snapshot: so many are encoded in one go

R = TypeVar("R")
Done = Callable[[Exception | None], None]

log = logging.getLogger(__name__)


class SnapshotLog(Generic[R]):
    def __init__(
        self, ledger: ManagedLedger, cursor: ManagedCursor, encode: Callable[[Sequence[R]], bytes]
    ) -> None:
        self._ledger = ledger
        self._cursor = cursor
        self._encode = encode
        self._gathered: list[R] = []  # in this tick
        self._gathered_done: list[Done] = []
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

    def append(self, record: R, done: Done) -> None:
        """Queue it, now; `done` is told when it is durable, or why it is not."""
        self.records_since_snapshot += 1
        self._gathered.append(record)
        self._gathered_done.append(done)
        count = len(self._gathered)
        if count == 1:
            asyncio.get_running_loop().call_soon(self._write_gathered)
        elif count >= _RECORDS_PER_ENTRY:
            self._write_gathered()

    def append_together(self, records: Sequence[R], done: Done) -> None:
        """As `append`, in one entry: durable together or not at all."""
        self._write_gathered()
        self.records_since_snapshot += len(records)
        self._gathered, self._gathered_done = list(records), [done]
        self._write_gathered()

    def _write_gathered(self) -> None:
        if not self._gathered:
            return
        records, done = self._gathered, self._gathered_done
        self._gathered, self._gathered_done = [], []
        try:
            entry = self._encode(records)
        except Exception as error:  # nothing of them is written, as if the storage had refused it
            log.exception("%s: %d records cannot be written", self.name, len(records))
            self._written(done, None, error)
        else:
            self._ledger.append([entry], [1], partial(self._written, done))

    def _written(
        self, done: Sequence[Done], position: Position | None, error: Exception | None
    ) -> None:
        if error is not None:
            self.on_failure(error)
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
