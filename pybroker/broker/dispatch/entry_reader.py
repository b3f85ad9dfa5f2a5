"""A subscription's read position: the next entries, without those that must not be delivered.

Left out are acknowledged entries (the cursor knows their ranges), hidden ones (aborted messages and
transaction markers) and those that an open transaction has acknowledged individually. As the reader
passes hidden entries, it deletes their range in the cursor, so that mark-delete moves over them.
Nothing after the topic's `max_read_position` is examined (uncommitted_reader.py goes further).
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from managed_ledger.cursor import ManagedCursor
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.runtime import Tasks
from pybroker.broker.dispatch.delivery import MAX_RUN_ENTRIES, Delivery, nothing
from pybroker.broker.dispatch.entry_fetcher import EntryFetcher, OnDamage
from pybroker.broker.dispatch.lives import Lives

log = logging.getLogger(__name__)

_MIN_WINDOW: Final = 64  # entries searched for visible ones, at first
_MAX_WINDOW: Final = 65_536  # after many invisible ones
Range = tuple[int, int]


class HiddenRanges(Protocol):
    """Aborted messages and markers; implemented in
    transaction.buffer.log_order.aborted_txns.
    """

    def ranges_within(self, ledger_id: int, first: int, last: int) -> list[Range]: ...


class ReadableTopic(Protocol):
    @property
    def ledger(self) -> ManagedLedger: ...
    @property
    def max_read_position(self) -> Position: ...
    @property
    def max_uncommitted_position(self) -> Position: ...
    @property
    def hidden(self) -> HiddenRanges: ...
    @property
    def tasks(self) -> Tasks: ...


class WithheldEntries(Protocol):
    """Messages that open transactions have acknowledged individually; implemented in
    transaction.pending_acks.pending_ack.
    """

    @property
    def holds_singly(self) -> bool: ...
    def is_pending(self, ledger_id: int, entry_id: int) -> bool: ...
    def pending_indexes(self, position: Position) -> int: ...


class EntryReader:
    __slots__ = (
        "_again",
        "_ahead",
        "_cursor",
        "_ledger",
        "_messages_per_entry",
        "_settled_to",
        "_topic",
        "lives",
        "most_bytes",
        "most_messages",
        "position",
        "withheld",
    )

    def __init__(
        self,
        topic: ReadableTopic,
        cursor: ManagedCursor,
        resume: Callable[[], None],
        on_damage: OnDamage,
    ) -> None:
        self._topic = topic
        self._ledger = topic.ledger
        self._cursor = cursor
        self._ahead = EntryFetcher(topic.ledger, topic.tasks, resume, on_damage)
        self._again: EntryFetcher | None = None  # created when first needed
        self._messages_per_entry = 1
        self._settled_to = EARLIEST
        self.position = cursor.mark_delete_position.after
        self.withheld: WithheldEntries | None = None
        # With a dispatch rate, what may be read until this is set again.
        self.most_messages: int | None = None
        self.most_bytes = 0
        self.lives: Lives | None = None  # of clients, on Exclusive and Failover

    @property
    def limit(self) -> Position:
        """The last position that may be read, or be acknowledged without being read."""
        return self._topic.max_read_position

    @property
    def hidden(self) -> Callable[[int, int, int], list[Range]]:
        return self._topic.hidden.ranges_within

    def aborted(self, first: Position) -> None:
        """Called when entries from `first` on have just been hidden; here none of them has been
        read.
        """

    def rewind(self) -> None:
        """Back to the first unacknowledged entry."""
        self.position = self._cursor.mark_delete_position.after
        self._settled_to = EARLIEST
        self.read_anew()

    def moved(self) -> None:
        """Begin at the cursor, which a seek has moved."""
        if self.lives is not None:
            self.lives.forget_all()
        self.rewind()

    @property
    def first(self) -> Position:
        """The first unacknowledged entry, or the next one to be appended."""
        return self._ledger.next_position(self._cursor.mark_delete_position)

    @property
    def end(self) -> Position:
        """The next entry to be appended."""
        return self._ledger.next_position(self._ledger.last_confirmed)

    def require_lives(self) -> Lives:
        if self.lives is None:
            self.lives = Lives(lambda: self.position, lambda: self.first)
        return self.lives

    @property
    def clients_may_return(self) -> bool:
        """Whether an Exclusive or Failover client that is gone may acknowledge when it returns."""
        return self.lives is not None and self.lives.may_return()

    def break_cycles(self) -> None:
        """Drops references, because the subscription has ended."""
        for fetcher in (self._ahead, self._again):
            if fetcher is not None:
                fetcher.break_cycles()
        self.lives = None

    def read_anew(self) -> None:
        """Discard a read in progress and what earlier reads have returned."""
        self._ahead.drop()
        if self._again is not None:
            self._again.drop()

    def read_as_stored(self, as_stored: bool) -> None:
        """Whether entries are handed out as they are stored, not as Pulsar's clients get them."""
        if as_stored != self._ahead.as_stored:
            self.read_anew()
            self._ahead.as_stored, self._again = as_stored, None

    # -- reading on

    def at_most(self, messages: int, size_bytes: int) -> tuple[int, int]:
        """How much of these messages and bytes may be read now."""
        if self.most_messages is None:
            return messages, size_bytes
        return min(messages, self.most_messages), min(size_bytes, self.most_bytes)

    def pass_over(self, delivery: Delivery) -> None:
        """Move past these entries, which no consumer gets for now."""
        self.position = Position(delivery.ledger_id, delivery.entry_ids[-1] + 1)
        self._ahead.passed(self.position)

    def peek(self, max_messages: int, max_bytes: int) -> Delivery | None:
        """The next entries, for about `max_messages`; None if there are none, or none in memory. An
        empty delivery means that entries were passed over; there may be more. The last entry may be
        a batch that overdraws `max_messages`.
        """
        max_messages, max_bytes = self.at_most(max_messages, max_bytes)
        if max_messages <= 0 or max_bytes <= 0:
            return None
        wanted = min(max_messages // self._messages_per_entry + 1, max_messages, MAX_RUN_ENTRIES)
        window = min(max(4 * wanted, _MIN_WINDOW), MAX_RUN_ENTRIES)
        if (visible := self._next_visible(window)) is None:
            return None
        position, ranges = visible
        up_to = Position(position.ledger_id, _end_of(ranges, wanted))
        span = up_to.entry_id - position.entry_id + 1
        run = self._ahead.fetch(position, up_to, span, max_bytes)
        if run is None:
            return None
        delivery = self._delivery(run, ranges)
        if not delivery.entries:
            self.position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
            return delivery
        messages = sum(delivery.message_counts)
        self._messages_per_entry = max(1, messages // len(delivery.entries))
        return delivery.part(0, delivery.affordable(max_messages))

    def advance(self, delivery: Delivery) -> None:
        """Move past entries of the last `peek` that were delivered, or that the dispatcher
        keeps.
        """
        self.pass_over(delivery)
        self.spend(delivery)

    def spend(self, delivery: Delivery) -> None:
        """Charge these entries, which were sent, to the dispatch rate."""
        if self.most_messages is not None:
            self.most_messages -= sum(delivery.message_counts)
            self.most_bytes -= sum(map(len, delivery.entries))

    def skip_invisible(self) -> None:
        """Settle hidden entries before the next visible one, even if no consumer can take that
        one.
        """
        self._next_visible(_MIN_WINDOW)

    # -- reading again

    def reread(self, ledger_id: int, first: int, last: int, max_bytes: int) -> Delivery | None:
        """The entries `first` to `last` that are still to be delivered; None while they are being
        read.
        """
        ranges = between(first, last, self._cursor.deleted_within(ledger_id, first, last))
        if not ranges:
            return nothing(ledger_id)
        position, up_to = Position(ledger_id, ranges[0][0]), Position(ledger_id, ranges[-1][1])
        if self._again is None:
            self._again = self._ahead.another()
        run = self._again.fetch(position, up_to, last - first + 1, max_bytes)
        if run is not None:
            return self._delivery(run, ranges)
        return None if self._ledger.has_entries(position, up_to) else nothing(ledger_id)

    def wants(self, position: Position) -> bool:
        """Whether this entry is still to be delivered."""
        withheld = self.withheld
        if withheld is not None and withheld.holds_singly and withheld.is_pending(*position):
            return False
        return not self._cursor.is_deleted(position)

    # -- what may be delivered

    def _next_visible(self, window: int) -> tuple[Position, list[Range]] | None:
        """Move to the next entry to deliver. Returns it with ranges of such entries, from it on.

        The ranges are in one ledger, within `window` entries, and may include entries that do not
        exist yet.
        """
        limit, look_at = self.limit, window
        while True:
            self._pass_acknowledged()
            position = self._ledger.next_position(self.position.before)
            if position > limit:
                return None
            ledger_id, first = position
            last = first + look_at - 1
            if ledger_id == limit.ledger_id:
                last = min(last, limit.entry_id)
            self._settle_hidden(ledger_id, first, last)
            ranges = between(first, last, self._cursor.deleted_within(ledger_id, first, last))
            if not ranges:  # a long aborted transaction, perhaps: look further each time
                self.position = Position(ledger_id, last + 1)
                look_at = min(2 * look_at, _MAX_WINDOW)
                continue
            self.position = Position(ledger_id, ranges[0][0])
            if ranges[0][0] == first and look_at == window:
                return position, ranges
            look_at = window

    def _pass_acknowledged(self) -> None:
        if self.position <= self._cursor.mark_delete_position:
            self.position = self._cursor.mark_delete_position.after

    def _settle_hidden(self, ledger_id: int, first: int, last: int) -> None:
        end = Position(ledger_id, last)
        if end <= self._settled_to:
            return
        if self._settled_to.ledger_id == ledger_id:
            first = max(first, self._settled_to.entry_id + 1)
        for start, stop in self._topic.hidden.ranges_within(ledger_id, first, last):
            self._cursor.delete_range(ledger_id, start, stop)
        self._settled_to = end

    def _delivery(self, run: EntryRun, ranges: list[Range]) -> Delivery:
        """The run without entries outside `ranges`, pending ones, and acknowledged parts."""
        first, stop = run.first_entry_id, run.first_entry_id + len(run.entries)
        if len(ranges) == 1:
            delivery = Delivery(run.ledger_id, range(first, stop), run.entries, run.message_counts)
        else:
            inside = [
                entry_id - first
                for low, high in ranges
                for entry_id in range(max(low, first), min(high + 1, stop))
            ]
            delivery = Delivery(
                run.ledger_id, range(first, stop), run.entries, run.message_counts
            ).pick(inside)
        pending = self.withheld is not None and self.withheld.holds_singly
        if pending or self._cursor.partial_batches:
            return self._in_part(delivery)
        return delivery

    def _in_part(self, delivery: Delivery) -> Delivery:
        """The delivery without messages that open transactions withhold; batches with their
        remaining indexes.
        """
        ledger_id = delivery.ledger_id
        kept: list[int] = []
        counts = list(delivery.message_counts)
        partial: dict[int, tuple[int, int]] = {}
        held: dict[int, int] = {}
        for index, entry_id in enumerate(delivery.entry_ids):
            batch_size, position = counts[index], Position(ledger_id, entry_id)
            bits = self.unacked_bits(position, batch_size)
            if not bits:
                continue
            kept.append(index)
            if bits.bit_count() < batch_size:
                partial[entry_id] = (bits, batch_size)
                counts[index] = bits.bit_count()
                if pending := self._pending_bits(position):
                    held[entry_id] = pending
        entries, entry_ids = delivery.entries, delivery.entry_ids
        whole = Delivery(ledger_id, entry_ids, entries, counts, partial or None, held or None)
        return whole.pick(kept)

    def unacked_bits(self, position: Position, batch_size: int) -> int:
        """The indexes of a batch that are acknowledged neither plainly nor in an open
        transaction.
        """
        bits = self._cursor.unacked_indexes(position)
        if bits is None:
            bits = (1 << batch_size) - 1
        withheld = self.withheld
        if withheld is not None and withheld.holds_singly and withheld.is_pending(*position):
            return 0
        return bits & ~self._pending_bits(position)

    def _pending_bits(self, position: Position) -> int:
        """The indexes of a batch that open transactions have acknowledged."""
        withheld = self.withheld
        return 0 if withheld is None else withheld.pending_indexes(position)

    def unacknowledged(self, after: Position, up_to: Position) -> Iterator[tuple[int, int, int]]:
        """Visible entries, in order: runs of a ledger's id, its first and last entry."""
        deleted, hidden = self._cursor.deleted_within, self.hidden
        while (span := self._ledger.span(after.after, up_to)) is not None:
            ledger_id, _, end = span
            for start, stop in between(*span[1:], deleted(*span)):
                for first, last in between(start, stop, hidden(ledger_id, start, stop)):
                    yield ledger_id, first, last
            after = Position(ledger_id, end)

    # -- counting

    def hidden_backlog(self, up_to: Position) -> int:
        """The number of hidden entries that the cursor still counts as unacknowledged."""
        after = max(self._cursor.mark_delete_position, self._settled_to)
        if after >= up_to or not self._topic.hidden:
            return 0
        count = 0
        for info in self._ledger.ledgers():
            first = after.entry_id + 1 if info.ledger_id == after.ledger_id else 0
            last = up_to.entry_id if info.ledger_id == up_to.ledger_id else info.entries - 1
            if after.ledger_id <= info.ledger_id <= up_to.ledger_id:
                count += self._unsettled(info.ledger_id, first, last)
        return count

    def _unsettled(self, ledger_id: int, first: int, last: int) -> int:
        return sum(
            stop - start + 1
            for low, high in self._topic.hidden.ranges_within(ledger_id, first, last)
            for start, stop in between(low, high, self._cursor.deleted_within(ledger_id, low, high))
        )


def _end_of(ranges: list[Range], wanted: int) -> int:
    """The entry at which the ranges reach `wanted` entries, or their last one."""
    for first, last in ranges:
        if last - first + 1 >= wanted:
            return first + wanted - 1
        wanted -= last - first + 1
    return ranges[-1][1]


def between(first: int, last: int, holes: list[Range]) -> list[Range]:
    """The parts of the closed range `first` to `last` outside the `holes` (closed, in order)."""
    if not holes:
        return [(first, last)]
    left: list[Range] = []
    for start, stop in holes:
        if start > first:
            left.append((first, start - 1))
        first = stop + 1
    if first <= last:
        left.append((first, last))
    return left
