"""The log beside a topic's own, in which transactions wait for their commit.

It is a managed ledger with one cursor. Entries that are not deleted belong to transactions that
have not ended on the topic; each entry has its transaction's tag. The entries of ended transactions
are deleted individually, so a ledger is trimmed when all transactions in it have ended.
"""

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursor import ManagedCursor
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.runtime import Pace
from pybroker.transaction.buffer.commit_order.aside_transactions import AsideTransactions
from pybroker.transaction.buffer.commit_order.turn_share import turn_share
from pybroker.transaction.buffer.transactional_entries import parse_tag

# The log is small if transactions are short. No retention: ended transactions are useless.
_CONFIG: Final = ManagedLedgerConfig(
    max_size_per_ledger_bytes=64 * 1024**2, min_rollover_time_ms=1000
)
_CURSOR: Final = "ended"
_READ_ENTRIES: Final = 1000
_READ_BYTES: Final = 1024 * 1024
_READ_A_TURN: Final = 1000  # entries
_READ_COSTS: Final = 20  # as much as this many additional entries
_DELETED_A_TURN: Final = 100  # ranges

Range = tuple[int, int, int]  # ledger, first, last


class SideLog:
    """The log of one topic's open transactions. `open` makes one from what is stored."""

    __slots__ = ("_cursor", "_to_delete", "ledger")

    def __init__(self, ledger: ManagedLedger, cursor: ManagedCursor) -> None:
        self.ledger = ledger
        self._cursor = cursor
        self._to_delete: deque[Range] = deque()

    @classmethod
    async def open(cls, factory: ManagedLedgerFactory, name: str) -> "SideLog":
        """Create the log if it does not exist; durable when this returns. Raises
        ManagedLedgerError.
        """
        ledger = await factory.open(name, _CONFIG)
        try:
            return cls(ledger, await ledger.open_cursor(_CURSOR, ledger.first_position.before))
        except BaseException:  # nobody else would close the ledger
            await ledger.close()
            raise

    # Reading

    def cached(self, ranges: Iterable[Range]) -> list[EntryRun] | None:
        """All entries of `ranges` at once; None if some are not in memory."""
        found = []
        for ledger_id, first, last in ranges:
            while first <= last:
                position, end = Position(ledger_id, first), Position(ledger_id, last)
                run = self.ledger.read_cached(position, end, _READ_ENTRIES, _READ_BYTES)
                if run is None or run.first_entry_id != first or not run.entries:
                    return None
                found.append(run)
                first += len(run.entries)
        return found

    async def read(self, ranges: Iterable[Range]) -> AsyncIterator[EntryRun]:
        """The entries of `ranges`, piece by piece, a limited number per turn. Leaves out damaged
        entries, and logs them. Raises ManagedLedgerError.
        """
        pace = Pace(_READ_A_TURN)
        for ledger_id, first, last in ranges:
            position, end = Position(ledger_id, first), Position(ledger_id, last)
            while run := await self.ledger.read_whole(position, end, _READ_ENTRIES, _READ_BYTES):
                yield run
                await pace.step(_READ_COSTS + len(run.entries))
                position = Position(run.ledger_id, run.first_entry_id + len(run.entries))

    async def recover(self, transactions: AsideTransactions, now_ms: int) -> None:
        """Add the transactions that have not ended to `transactions`."""
        async for run in self.read(self._not_deleted()):
            for first, last, tag in run.tags:
                txn_id = parse_tag(tag).txn_id
                assert txn_id is not None, "every entry of a side log is in a transaction"
                transaction = transactions.get(txn_id) or transactions.begin(txn_id, now_ms)
                entries = run.entries[first - run.first_entry_id : last + 1 - run.first_entry_id]
                position = Position(run.ledger_id, first)
                transactions.appended(transaction, position, len(entries), sum(map(len, entries)))

    def _not_deleted(self) -> Iterator[Range]:
        for info in self.ledger.ledgers():
            first = 0
            deleted = self._cursor.deleted_within(info.ledger_id, 0, info.entries - 1)
            for gone_from, gone_to in deleted:
                if first < gone_from:
                    yield info.ledger_id, first, gone_from - 1
                first = gone_to + 1
            if first < info.entries:
                yield info.ledger_id, first, info.entries - 1

    # Deleting

    def delete(self, ranges: Iterable[Range]) -> bool:
        """Delete the entries of `ranges`. True if this is done; otherwise call `delete_rest`."""
        self._to_delete.extend(ranges)
        if turn_share().has_room:
            turn_share().spend(min(len(self._to_delete), _DELETED_A_TURN))
            self._delete_some()
        return not self._to_delete

    async def delete_rest(self) -> None:
        pace = Pace(1)
        while self._to_delete:
            self._delete_some()
            await pace.step()

    def _delete_some(self) -> None:
        for _ in range(min(_DELETED_A_TURN, len(self._to_delete))):
            self._cursor.delete_range(*self._to_delete.popleft())

    async def flush(self) -> None:
        """Make all deletions so far durable. Raises ManagedLedgerError."""
        await self.delete_rest()
        await self.ledger.flush_cursors()
