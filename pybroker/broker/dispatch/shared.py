"""Shared: each message goes to one of the consumers, in turn, and is acknowledged individually.

Consumers of the best priority level that can take something share the entries: a run is split
evenly among them. Returned entries (negative acknowledgement, disconnect, abort) are delivered
before new ones. A consumer, or the whole subscription, that holds too many unacknowledged messages
gets nothing more until half of them are acknowledged.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from managed_ledger.position import Position
from pybroker.broker.dispatch.delayed import Delays, UndelayedReader
from pybroker.broker.dispatch.delivery import (
    ROUND_BYTES,
    ROUND_STEPS,
    Delivery,
    EntryIds,
    by_ledger,
)
from pybroker.broker.dispatch.entry_reader import EntryReader
from pybroker.broker.dispatch.redelivery import RedeliveryCounts
from pybroker.broker.dispatch.returned import ReturnedEntries
from pybroker.broker.subscriptions.consumer import MAX_PERMITS, Consumer


@dataclass(frozen=True, slots=True)
class UnackedLimits:
    """In messages; 0 means no limit."""

    per_consumer: int
    per_subscription: int


class Ready(NamedTuple):
    consumer: Consumer
    allowance: int  # messages that it may be given now


class Source(Protocol):
    """Where entries come from: new ones, or those to be delivered again."""

    def peek(self, max_messages: int, max_bytes: int) -> Delivery | None: ...

    def advance(self, delivery: Delivery) -> None: ...


class PriorityLevels(dict[int, deque[Consumer]]):
    """Consumers by priority level; 0, the best, comes first. In each level, the consumer to be
    served next is the first.
    """

    def add(self, consumer: Consumer) -> None:
        self.setdefault(consumer.priority_level, deque()).append(consumer)
        levels = sorted(self.items())
        self.clear()
        self.update(levels)

    def remove(self, consumer: Consumer) -> None:
        level = self[consumer.priority_level]
        level.remove(consumer)
        if not level:
            del self[consumer.priority_level]


class SharedDispatcher:
    def __init__(
        self,
        reader: EntryReader,
        counts: RedeliveryCounts,
        limits: UnackedLimits,
        delays: Delays,
        resume: Callable[[], None],
    ) -> None:
        """`resume` is called when something that prevented delivery has ended."""
        self._reader = reader
        self._unread = UndelayedReader(reader, delays, resume)
        self._counts = counts
        self._limits = limits
        self._resume = resume
        self._returned = ReturnedEntries(reader, self._unread)
        self._levels = PriorityLevels()
        self._unacked = 0
        self._blocked = False
        self._restored = False  # an abort has restored entries since the last rewind
        reader.rewind()

    # -- consumers

    def add(self, consumer: Consumer) -> None:
        self._levels.add(consumer)

    def remove(self, consumer: Consumer) -> None:
        self._levels.remove(consumer)
        # Not counted as a redelivery: the application never saw most of these messages.
        self.give_back(consumer, None)
        if not self._levels:
            self._unread.forget()

    def _consumers(self) -> Iterable[Consumer]:
        return (consumer for level in self._levels.values() for consumer in level)

    def set_limits(self, limits: UnackedLimits) -> None:
        """Apply new limits; blocked consumers continue if these allow it."""
        self._limits = limits
        self._blocked = 0 < limits.per_subscription <= self._unacked
        for consumer in self._consumers():
            consumer.blocked = 0 < limits.per_consumer <= consumer.unacked.messages

    # -- delivering

    def dispatch(self) -> bool:
        """Deliver what permits and sockets allow; True if a round was not enough."""
        bytes_left = ROUND_BYTES
        for _ in range(ROUND_STEPS):
            ready = self._ready()
            if not ready:
                self._reader.skip_invisible()
                return False
            sent = self._share_out(ready, bytes_left)
            if not sent:
                return False
            bytes_left -= sent
            if bytes_left <= 0:
                break
        return True

    def _ready(self) -> list[Ready]:
        """The consumers of the best level that can take messages, the next to be served first."""
        for level in self._levels.values():
            ready = [
                Ready(consumer, allowance)
                for consumer in level
                if (allowance := self._allowance(consumer)) > 0
            ]
            if ready:
                return ready
        return []

    def _allowance(self, consumer: Consumer) -> int:
        """How many messages the consumer may be given now."""
        if self._blocked or consumer.blocked or not consumer.sink.writable:
            return 0
        limit = self._limits.per_consumer or MAX_PERMITS
        return min(consumer.permits, limit - consumer.unacked.messages)

    def _allowed(self, wanted: int) -> int:
        """How many of the `wanted` messages the whole subscription may still hold."""
        return min(wanted, (self._limits.per_subscription or MAX_PERMITS) - self._unacked)

    def _share_out(self, ready: list[Ready], max_bytes: int) -> int:
        """Split the next entries evenly; returns the bytes sent, 0 if there is nothing."""
        wanted = self._allowed(sum(turn.allowance for turn in ready))
        self._return_due()
        for source in (self._returned, self._unread):
            delivery = source.peek(wanted, max_bytes)
            if delivery is not None:
                return self._hand_out(ready, source, delivery) or 1  # entries were passed over
        return 0

    def _return_due(self) -> None:
        """Delayed entries that are due go out like returned ones, but are not counted."""
        if self._returned:
            return
        due = by_ledger(self._unread.take_due())
        if self._restored:  # by a transaction that had acknowledged them early
            due = self._not_held(due)
        if due:
            self._returned.add(due)

    def _not_held(self, entries: EntryIds) -> EntryIds:
        """The entries that no consumer holds; efficient for many entries and many consumers."""
        free = {ledger_id: set(entry_ids) for ledger_id, entry_ids in entries.items()}
        for consumer in self._consumers():
            for ledger_id, entry_ids in free.items():
                entry_ids -= consumer.unacked.among(ledger_id, entry_ids)
        return {ledger_id: sorted(ids) for ledger_id, ids in free.items() if ids}

    @property
    def in_replay(self) -> int:
        """The number of entries that wait to be delivered again."""
        return len(self._returned)

    @property
    def delayed(self) -> int:
        """The number of entries that wait for their time."""
        return self._unread.delayed

    @property
    def delayed_bytes(self) -> int:
        return self._unread.size_bytes

    def _hand_out(self, ready: list[Ready], source: Source, delivery: Delivery) -> int:
        share = -(-len(delivery.entries) // len(ready))
        start = sent = 0
        for consumer, allowance in ready:
            part = delivery.part(start, start + share)
            if part.entries:
                part = part.part(0, part.affordable(allowance))
                source.advance(part)
                sent += self._deliver(consumer, part)
                start += len(part.entries)
                self._to_the_back(consumer)
        return sent

    def _to_the_back(self, consumer: Consumer) -> None:
        level = self._levels[consumer.priority_level]
        level.remove(consumer)
        level.append(consumer)

    def _deliver(self, consumer: Consumer, delivery: Delivery) -> int:
        messages = sum(delivery.message_counts)
        consumer.unacked.add(delivery, messages)
        self._unacked += messages
        limits = self._limits
        if limits.per_consumer and consumer.unacked.messages >= limits.per_consumer:
            consumer.blocked = True
        if limits.per_subscription and self._unacked >= limits.per_subscription:
            self._blocked = True
        return consumer.deliver(delivery, self._counts.of(delivery))

    # -- acknowledgements

    def release(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> None:
        """Release these entries, although another consumer may hold them."""
        missing = self._release_own(consumer, positions)
        if missing:
            self._release_of_others(consumer, missing)

    def _release_of_others(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> None:
        for other in self._consumers():
            if other is not consumer:
                positions = self._release_own(other, positions)

    def _release_own(
        self, consumer: Consumer, positions: Sequence[tuple[int, int]]
    ) -> Sequence[tuple[int, int]]:
        """Release the entries that the consumer holds; returns the others."""
        before = consumer.unacked.messages
        missing = consumer.unacked.release(positions)
        self._credit(consumer, before - consumer.unacked.messages)
        return missing

    def keep(self, consumer: Consumer, position: Position, messages: int) -> None:
        """Leave only `messages` of this batch unacknowledged."""
        if messages == 0:
            self.release(consumer, [position])
            return
        for holder in (consumer, *self._consumers()):
            before = holder.unacked.messages
            if holder.unacked.keep(position, messages):
                self._credit(holder, before - holder.unacked.messages)
                return

    def _credit(self, consumer: Consumer, messages: int) -> None:
        """Count `messages` fewer for the consumer."""
        self._unacked -= messages
        if consumer.blocked and consumer.unacked.messages <= self._limits.per_consumer // 2:
            consumer.blocked = False
            self._resume()
        if self._blocked and self._unacked <= self._limits.per_subscription // 2:
            self._blocked = False
            self._resume()

    # -- giving back

    def redeliver(
        self, consumer: Consumer, positions: Sequence[Position] | None, drops: bool = True
    ) -> None:
        """Redeliver these entries of the consumer or (None) all, to any consumer. Messages that an
        open transaction has acknowledged are not held by a consumer and stay withheld.
        """
        consumer.left_out.asked_again(positions)
        self._counts.increment(self.give_back(consumer, positions))

    def give_back(self, consumer: Consumer, positions: Sequence[Position] | None) -> EntryIds:
        """Like `redeliver`, but not counted; returns what the consumer held."""
        unacked = consumer.unacked
        before = unacked.messages
        # A batch may be named once per message.
        returned = unacked.take_all() if positions is None else unacked.take(positions)
        self._credit(consumer, before - unacked.messages)
        self._returned.add(returned)
        return returned

    def restore(self, positions: Sequence[Position]) -> None:
        """Redeliver entries that an aborted transaction had acknowledged."""
        for consumer in self._consumers():
            self._release_own(consumer, positions)  # for entries that it acknowledged in part
        self._restored = self._returned.may_be_early = True
        self._counts.increment(self._returned.add(by_ledger(positions)))

    def skipped_to(self, mark: Position) -> None:
        """Forget all entries up to the position, which were acknowledged, including those that
        consumers hold and delayed ones.
        """
        for consumer in self._consumers():
            before = consumer.unacked.messages
            consumer.unacked.forget_up_to(mark)
            self._credit(consumer, before - consumer.unacked.messages)
        self._returned.forget_up_to(mark)
        self._unread.skipped_to(mark)

    def rewind(self) -> None:
        """Forget which consumer holds what, and start after the mark-delete position."""
        for consumer in self._consumers():
            consumer.unacked.take_all()
            consumer.blocked = False
        self._unacked = 0
        self._blocked = self._restored = False
        self._returned.clear()
        self._unread.rewind()
