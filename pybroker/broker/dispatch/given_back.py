"""Messages of an Exclusive or Failover subscription that an aborted transaction had acknowledged
individually, and that are unacknowledged.

Consumers received later messages in the meantime. Such a message is delivered late, so a
cumulative acknowledgement at a later position may have been sent before the message arrived, or
after. `cumulative` decides what it covers, from what is noted here: how far the log had been read
when the message was delivered, and in which order such messages were delivered.

A batch is noted in parts, each of which was given back at once; a late delivery has only the part
that was given back. When reading restarts, everything comes again in order.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sortedcontainers import SortedDict

from managed_ledger.position import EARLIEST, Position
from pybroker.broker.dispatch.delivery import Delivery
from pybroker.transaction.pending_acks.records import ALL_INDEXES, HELD_WHOLE, Held

_PRUNE_FROM: Final = 1000  # entries


@dataclass(slots=True, eq=False)
class Part:
    """Messages of one entry. Times are those of the subscription's clock: see `lives`."""

    bits: int  # indexes of the batch; ALL_INDEXES for a whole entry
    batch_size: int
    held_at: int  # when the transaction acknowledged them
    given_back_at: int
    # Since reading last restarted: how far the log had been read when they were delivered, and
    # when that was.
    read_to: Position | None = None
    given_at: int = 0
    again: bool = False  # they had been given back and delivered before

    @property
    def was_given(self) -> bool:
        return self.again or self.read_to is not None

    def without(self, bits: int, size: int) -> int:
        """The other messages, as bits; `size` is that of the batch."""
        if self.bits == ALL_INDEXES and bits != ALL_INDEXES:
            return ~bits & ((1 << size) - 1)
        return self.bits & ~bits

    def has(self, index: int) -> bool:
        """Whether it includes this message of the batch; -1 means the last one."""
        if self.bits == ALL_INDEXES:
            return True
        return bool(self.bits >> (self.batch_size - 1 if index < 0 else index) & 1)


class GivenBack(Mapping[Position, Held]):
    """As a mapping: the messages of each entry, in order of position. It may include messages that
    were acknowledged in the meantime.
    """

    __slots__ = ("_delivered", "_entries", "_prune_at", "settled_to")

    def __init__(self) -> None:
        self._entries: SortedDict[Position, list[Part]] = SortedDict()
        # Delivered since reading last restarted, in that order, so that `read_to` never falls.
        self._delivered: dict[int, tuple[Position, Part]] = {}  # by `given_at`
        self._prune_at = _PRUNE_FROM
        # Plain cumulative acknowledgements have settled everything up to here, except messages
        # that they spared.
        self.settled_to = EARLIEST

    def __getitem__(self, position: Position) -> Held:
        parts: list[Part] = self._entries[position]
        held = Held(parts[0].bits, parts[0].batch_size)
        for part in parts[1:]:
            held |= Held(part.bits, part.batch_size)
        return held

    def __iter__(self) -> Iterator[Position]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self,
        given_back: Mapping[Position, Held],
        held_at: int,
        now: int,
        is_deleted: Callable[[Position], bool],
    ) -> None:
        if len(self._entries) > self._prune_at:
            for position in [each for each in self._entries if is_deleted(each)]:
                self.forget(position)
            self._prune_at = max(_PRUNE_FROM, 2 * len(self._entries))
        for position, (bits, size) in given_back.items():
            again = any(part.bits & bits and part.was_given for part in self.of(position))
            self.forget(position, bits, size)
            part = Part(bits, size, held_at, now, again=again)
            self._entries.setdefault(position, []).append(part)

    def of(self, position: Position) -> list[Part]:
        parts: list[Part] | None = self._entries.get(position)
        return parts or []

    def up_to(self, last: Position, after: Position = EARLIEST) -> list[Position]:
        """The entries after `after` up to `last`."""
        return list(self._entries.irange(after, last, inclusive=(False, True)))

    def forget(self, position: Position, bits: int = ALL_INDEXES, size: int = 0) -> None:
        """Forget these messages of the entry, if they are known; `size` is that of the batch."""
        left: list[Part] = []
        for part in self._entries.pop(position, []):
            part.bits = part.without(bits, size)
            part.batch_size = max(part.batch_size, size)
            if part.bits:
                left.append(part)
            else:
                self._delivered.pop(part.given_at, None)
        if left:
            self._entries[position] = left

    def forget_up_to(self, mark: Position) -> None:
        """Forget what the mark-delete position has passed."""
        while self._entries and self._entries.peekitem(0)[0] <= mark:
            self.forget(self._entries.peekitem(0)[0])

    def begin_anew(self, oldest: int, plain_to: Position) -> None:
        """Everything unacknowledged is delivered from now on, in order. Forget what was given back
        before `oldest`: no client may have it from before. Up to `plain_to`, clients may drop it.
        """
        self._delivered.clear()
        for position, parts in list(self._entries.items()):
            for part in parts:
                part.again, part.read_to, part.given_at = part.was_given, None, 0
            if position > plain_to:
                parts[:] = [each for each in parts if each.given_back_at >= oldest]
                if not parts:
                    del self._entries[position]

    def delivered(self, delivery: Delivery, read_to: Position, now: int) -> int:
        """Note that the active consumer gets the delivery after everything before `read_to`.
        Returns the time after it.
        """
        ledger_id, ids = delivery.ledger_id, delivery.entry_ids
        known = list(self._entries.irange((ledger_id, ids[0]), (ledger_id, ids[-1])))
        parts = delivery.unacked_indexes or {}
        if known:
            inside = frozenset(ids)
            for position in known:
                if position.entry_id in inside:
                    held = Held(*parts.get(position.entry_id, (ALL_INDEXES, 0)))
                    now = self._delivered_entry(position, held, read_to, now)
        return now

    def passed(self, before: Position, read_to: Position, now: int) -> int:
        """Like `delivered`, for everything before `before`: nothing older will be delivered any
        more.
        """
        for position in list(self._entries.irange(maximum=before, inclusive=(True, False))):
            now = self._delivered_entry(position, HELD_WHOLE, read_to, now)
        return now

    def _delivered_entry(
        self, position: Position, messages: Held, read_to: Position, now: int
    ) -> int:
        parts: list[Part] = self._entries[position]
        for part in list(parts):
            given = part.bits & messages.bits
            if not given or part.read_to is not None:
                continue
            if rest := part.without(*messages):  # withheld by another transaction
                size = max(part.batch_size, messages.batch_size)
                parts.append(replace(part, bits=rest, batch_size=size))
                part.bits, part.batch_size = given, size
            now += 1
            part.read_to, part.given_at = max(position, read_to), now
            self._delivered[now] = (position, part)
        return now

    def late_only(self, delivery: Delivery) -> Delivery:
        """The delivery without messages that its consumer was given in order: of a batch, only the
        part that was given back.
        """
        partial, counts = dict(delivery.unacked_indexes or {}), list(delivery.message_counts)
        whole: dict[int, int] = {}
        for index, entry_id in enumerate(delivery.entry_ids):
            parts = self.of(Position(delivery.ledger_id, entry_id))
            bits = 0
            for part in parts:
                bits |= part.bits if part.read_to is None else 0
            unacked, size = partial.get(entry_id, ((1 << counts[index]) - 1, counts[index]))
            if bits and (late := unacked & bits) and late != unacked:
                partial[entry_id], counts[index] = (late, size), late.bit_count()
                whole[entry_id] = unacked
        if not whole:
            return delivery
        return replace(delivery, message_counts=counts, unacked_indexes=partial, late=whole)

    def delivered_before(self, last: Part) -> Iterator[tuple[Position, Part]]:
        """What was delivered since reading last restarted, in that order, before `last`."""
        for position, part in self._delivered.values():
            if part is last:
                return
            yield position, part

    def delivered_by(self, read_to: Position) -> Iterator[tuple[Position, Part]]:
        """What was delivered when the log had been read to `read_to` at most."""
        for position, part in self._delivered.values():
            if part.read_to is None or part.read_to > read_to:
                return
            yield position, part
