"""A durable log that can replace its past by a snapshot, so that replay is bounded by what lives.

    [entries before]  [snapshot entries]  [entries since]
                    ^ mark-delete of the log's own cursor: replay begins behind it

A snapshot is ordinary entries, appended in one go: at that instant they must say what every earlier
entry said together, those not yet durable too. Once they are durable, and whatever else the caller
keeps elsewhere, the mark-delete moves and the ledgers before it are trimmed. A crash before that
replays the old entries and then, in part or whole, the snapshot: applying must bear the repetition.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursor import ManagedCursor
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position

# What a snapshot replaced is of no use: no retention, and new ledgers soon, so that it can go.
_CONFIG: Final = ManagedLedgerConfig(min_rollover_time_ms=60_000)
_READ_ENTRIES: Final = 1000
_READ_BYTES: Final = 4 * 1024 * 1024


class SnapshotLog:
    def __init__(self, ledger: ManagedLedger, cursor: ManagedCursor) -> None:
        self._ledger = ledger
        self._cursor = cursor
        self.entries_since_snapshot = 0
        # Told of every append that failed, whether or not anybody waits for it.
        self.on_failure: Callable[[Exception], None] = lambda error: None

    @classmethod
    async def open(
        cls, factory: ManagedLedgerFactory, name: str, cursor_name: str
    ) -> "SnapshotLog":
        ledger = await factory.open(name, _CONFIG)
        return cls(ledger, await ledger.open_cursor(cursor_name, None))

    @property
    def name(self) -> str:
        return self._ledger.name

    async def replay(self, apply: Callable[[bytes], None]) -> None:
        """Feed every entry that still counts to `apply`, oldest first."""
        position = self._cursor.mark_delete_position.after
        end = self._ledger.last_confirmed
        while position <= end:
            run = await self._ledger.read(position, end, _READ_ENTRIES, _READ_BYTES)
            if run is None:
                break
            for entry in run.entries:
                apply(entry)
            self.entries_since_snapshot += len(run.entries)
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))

    def append(self, entry: bytes) -> asyncio.Future[Position]:
        """Queue it, now; the future is done once it is durable."""
        self.entries_since_snapshot += 1
        return self._append([entry])

    def _append(self, entries: Sequence[bytes]) -> asyncio.Future[Position]:
        durable: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._ledger.append(entries, [1] * len(entries), partial(self._answered, durable))
        return durable

    def _answered(
        self,
        durable: asyncio.Future[Position],
        position: Position | None,
        error: Exception | None,
    ) -> None:
        if error is not None:
            self.on_failure(error)
        if durable.done():
            return  # whoever waited was cancelled
        if position is not None:
            durable.set_result(position)
        elif error is not None:
            durable.set_exception(error)
            durable.exception()  # retrieved: nobody may be waiting

    async def replace_past(
        self, snapshot: Sequence[bytes], elsewhere: Callable[[], Awaitable[None]]
    ) -> None:
        """Append `snapshot` (at least one entry), now, and let go of everything before it.

        `elsewhere` makes durable what the dropped entries led to outside this log.
        """
        self.entries_since_snapshot = 0
        first = await self._append(snapshot)
        await elsewhere()
        self._cursor.mark_delete(first.before)
        await self._cursor.flush()

    async def close(self) -> None:
        await self._ledger.close()
