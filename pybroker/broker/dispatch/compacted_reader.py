"""The reader of a readCompacted consumer: the compacted log up to the horizon, then the log.

It shares the subscription's read position with the EntryReader, which continues after the horizon.
Kept messages outlive the ledgers they came from. If the subscription's position is before the first
remaining ledger, reading starts where its cursor would be if nothing had been trimmed (`reached`).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import CorruptStorage, DamagedEntries, LedgerClosed, LedgerNotFound
from managed_ledger.position import Position
from pybroker.base.runtime import Tasks
from pybroker.broker.compaction.compacted_log import CompactedLog, Kept
from pybroker.broker.compaction.seeking import SearchedTopic
from pybroker.broker.dispatch.delivery import Delivery
from pybroker.broker.dispatch.entry_fetcher import READ_RETRY_S, OnDamage
from pybroker.broker.dispatch.entry_reader import EntryReader

log = logging.getLogger(__name__)

_GONE: Final = (LedgerClosed, LedgerNotFound)  # another compaction has completed meanwhile


class Compacted(Protocol):
    """Implemented in broker.compaction."""

    @property
    def horizon(self) -> Position | None: ...
    async def log(self) -> CompactedLog | None: ...


class CompactableTopic(SearchedTopic, Protocol):
    @property
    def tasks(self) -> Tasks: ...
    @property
    def compaction(self) -> Compacted: ...


class CompactedReader:
    def __init__(
        self,
        topic: CompactableTopic,
        cursor: ManagedCursor,
        reader: EntryReader,
        resume: Callable[[], None],
        on_damage: OnDamage,
    ) -> None:
        self._reader = reader
        self._cursor = cursor
        self._ledger = topic.ledger
        self._compaction = topic.compaction
        self._tasks = topic.tasks
        self._resume = resume
        self._on_damage = on_damage
        self._held: list[Kept] = []  # in order, of one or several ledgers
        self._at: tuple[CompactedLog, Position] | None = None  # where the next entries are
        self._damaged: tuple[Position | None, CorruptStorage] | None = None  # of which horizon
        self._delivered: tuple[Position, int, int] | None = None  # the last entry, bits, messages
        self._reading = False
        self._turns = 0  # counts rewinds: reads from before the latest are discarded

    def rewind(self) -> None:
        """Back to the first unacknowledged entry, whether or not it still exists."""
        self._reader.rewind()
        self._reader.position = self._cursor.reached.after
        self._held, self._at, self._delivered = [], None, None
        self.retire()

    def retire(self) -> None:
        """Call when another reader takes over the subscription: a read in progress must not move
        anything.
        """
        self._turns += 1
        self._damaged = None

    @property
    def has_unacked(self) -> bool:
        """Whether the last message that it delivered is still to be acknowledged. What compaction
        left out is never acknowledged singly.
        """
        if self._delivered is None or self._delivered[0] < self._ledger.first_position:
            return False
        position, bits, messages = self._delivered
        deleted = self._cursor.is_deleted(position)
        return not deleted and bits & self._reader.unacked_bits(position, messages) != 0

    def peek(self, max_messages: int, max_bytes: int) -> Delivery | None:
        """Like EntryReader.peek. An empty delivery means that entries were passed over; there may
        be more.
        """
        horizon = self._compaction.horizon
        if horizon is None or self._reader.position > horizon:
            return self._reader.peek(max_messages, max_bytes)
        if not self._held:
            self._start_reading()
            return None
        max_messages, max_bytes = self._reader.at_most(max_messages, max_bytes)
        if max_messages <= 0 or max_bytes <= 0:
            return None
        delivery, passed = self._delivery(max_messages, max_bytes)
        if not delivery.entries:
            self._pass(passed)
            return delivery
        return delivery.part(0, delivery.affordable(max_messages))

    def advance(self, delivery: Delivery) -> None:
        """Like EntryReader.advance."""
        self.pass_over(delivery)
        self._reader.spend(delivery)

    def pass_over(self, delivery: Delivery) -> None:
        """Like EntryReader.pass_over."""
        entry_id, messages = delivery.entry_ids[-1], delivery.message_counts[-1]
        parts = delivery.unacked_indexes or {}
        part = parts.get(entry_id, ((1 << messages) - 1, messages))
        self._delivered = Position(delivery.ledger_id, entry_id), *part
        self._reader.pass_over(delivery)
        self._pass_up_to(self._reader.position)

    def skip_invisible(self) -> None:
        """Like EntryReader.skip_invisible; compacted entries need no settling."""
        horizon = self._compaction.horizon
        if horizon is None or self._reader.position > horizon:
            self._reader.skip_invisible()

    # -- entries that were read

    def _delivery(self, max_messages: int, max_bytes: int) -> tuple[Delivery, int]:
        """A delivery from one ledger, up to the limits, and the number of held entries that it
        covers.
        """
        ledger_id, size, taken = self._held[0].position.ledger_id, 0, 0
        ids: list[int] = []
        entries: list[bytes] = []
        counts: list[int] = []
        partial: dict[int, tuple[int, int]] = {}
        for kept in self._held:
            full = size >= max_bytes or len(ids) >= max_messages
            if kept.position.ledger_id != ledger_id or (taken and full):
                break
            taken += 1
            bits = self._wanted(kept)
            if not bits:
                continue
            entry_id = kept.position.entry_id
            if bits.bit_count() < kept.messages:
                partial[entry_id] = bits, kept.messages
            ids.append(entry_id)
            entries.append(kept.entry)
            counts.append(bits.bit_count())
            size += len(kept.entry)
        return Delivery(ledger_id, ids, entries, counts, partial or None), taken

    def _wanted(self, kept: Kept) -> int:
        """The messages of the entry to deliver, as bits."""
        bits = (1 << kept.messages) - 1 if kept.bits is None else kept.bits
        position, reader = kept.position, self._reader
        if position < self._ledger.first_position:
            return bits  # no client could acknowledge it
        return bits & reader.unacked_bits(position, kept.messages) if reader.wants(position) else 0

    def _pass(self, count: int) -> None:
        self._reader.position = self._held[count - 1].position.after
        del self._held[:count]

    def _pass_up_to(self, position: Position) -> None:
        passed = 0
        for kept in self._held:
            if kept.position >= position:
                break
            passed += 1
        del self._held[:passed]

    # -- reading

    def _start_reading(self) -> None:
        if self._damaged is not None and self._damaged[0] == self._compaction.horizon:
            asyncio.get_running_loop().call_soon(self._tell_of_damage, self._damaged)
        elif not self._reading:
            self._reading = True
            self._tasks.start(self._read(self._turns), "read compacted")

    def _tell_of_damage(self, damaged: tuple[Position | None, CorruptStorage]) -> None:
        if damaged is self._damaged:
            self._on_damage(damaged[1], None)

    async def _read(self, turn: int) -> None:
        horizon = self._compaction.horizon
        try:
            await self._read_on(turn)
        except _GONE:
            self._at = None
        except DamagedEntries as error:
            damage = CorruptStorage(
                f"the compacted log is damaged: {error.what}; stop the broker and restore the data "
                "directory from a backup, or read without readCompacted"
            )
            log.error("%s: %s", self._ledger.name, damage)
            if turn == self._turns:
                self._damaged = horizon, damage
                self._tell_of_damage(self._damaged)
                return
        except Exception as error:
            log.error("Reading the compacted log of %s failed: %s", self._ledger.name, error)
            self._at = None
            await asyncio.sleep(READ_RETRY_S)
        finally:
            self._reading = False
        self._resume()

    async def _read_on(self, turn: int) -> None:
        horizon, compacted = self._compaction.horizon, await self._compaction.log()
        assert compacted is not None and horizon is not None
        position = self._reader.position
        if self._at is not None and self._at[0].ledger is compacted.ledger:
            at = self._at[1]
        else:
            at = await compacted.find(position)
        found, end = await compacted.read(at)
        if turn != self._turns:
            return
        self._at = compacted, end
        self._held = [kept for kept in found if kept.position >= self._reader.position]
        if not found:
            self._at = None
            self._reader.position = max(self._reader.position, horizon.after)
