"""Key_Shared: all messages of a key go to one consumer at a time, in order.

Keys are hashed to slots, slots have owners (hash_ring). Entries are routed as they are read: to the
owner, or into `WaitingEntries` if it cannot take them now. A slot of which a former owner still
holds entries is draining: its later entries wait until those are acknowledged or given back (unless
out-of-order delivery is allowed). Once an entry waits for an owner, later ones queue up behind it,
so a key's order is preserved. The number of waiting entries is bounded; at the bound, reading
stops.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from managed_ledger.position import Position
from pybroker.broker.dispatch.delayed import Delays
from pybroker.broker.dispatch.delivery import (
    MAX_RUN_ENTRIES,
    ROUND_BYTES,
    ROUND_STEPS,
    Delivery,
    EntryIds,
)
from pybroker.broker.dispatch.entry_buckets import EntryBuckets
from pybroker.broker.dispatch.entry_reader import EntryReader
from pybroker.broker.dispatch.hash_ring import check_same_mode, slot_of, slot_of_origin
from pybroker.broker.dispatch.redelivery import RedeliveryCounts
from pybroker.broker.dispatch.shared import SharedDispatcher, Source, UnackedLimits
from pybroker.broker.dispatch.slots import SlotsInFlight, WaitingEntries
from pybroker.broker.dispatch.split_ranges import split_by
from pybroker.broker.subscriptions.consumer import Consumer, KeySharedPolicy
from pybroker.wire.message_metadata import (
    BadEntry,
    has_sticky_key,
    origin,
    parse_metadata,
    sticky_key,
)

MAX_WAITING_PER_CONSUMER: Final = 2000
MAX_WAITING: Final = 20_000


def slot_of_entry(entry: bytes) -> int:
    """Like Apache Pulsar 4: a message without a key is routed by its producer and sequence id."""
    try:
        metadata = parse_metadata(entry)
    except BadEntry:
        return slot_of(b"")
    if has_sticky_key(metadata):
        return slot_of(sticky_key(metadata))
    return slot_of_origin(origin(metadata))


class DrainingSlot(NamedTuple):
    slot: int
    held: int  # entries, by the previous owner
    waiting: int  # entries, for the present owner


class KeySharedDispatcher(SharedDispatcher):
    def __init__(
        self,
        reader: EntryReader,
        counts: RedeliveryCounts,
        limits: UnackedLimits,
        delays: Delays,
        resume: Callable[[], None],
        policy: KeySharedPolicy | None,
        consistent: bool = True,
    ) -> None:
        """All consumers must have the same `policy` as the first one, except for its ranges.

        `consistent`: AUTO_SPLIT by a ring, not by ranges.
        """
        super().__init__(reader, counts, limits, delays, resume)
        self._policy = policy or KeySharedPolicy()
        self._ring = ring = split_by(self._policy, consistent)
        self._slot_of = ring.slot_of_entry if isinstance(ring, EntryBuckets) else slot_of_entry
        self._in_flight = SlotsInFlight()
        self._waiting: defaultdict[Consumer | None, WaitingEntries] = defaultdict(WaitingEntries)
        self._draining: defaultdict[int, list[Position]] = defaultdict(list)
        self._parked = 0  # number of waiting and draining entries
        self._moved: dict[int, Consumer] = {}  # draining slots, with their former owners

    # -- for the admin API

    @property
    def policy(self) -> KeySharedPolicy:
        return self._policy

    def hash_ranges(self) -> Iterable[tuple[int, int, Consumer]]:
        return self._ring.ranges()

    @property
    def in_replay(self) -> int:
        """Includes entries that were read and wait for their consumer."""
        return super().in_replay + self._parked

    def draining(self) -> dict[Consumer, list[DrainingSlot]]:
        """Slots that have a new owner, by the consumer that still holds entries."""
        found: defaultdict[Consumer, list[DrainingSlot]] = defaultdict(list)
        for slot, holder, entries in self._in_flight.held():
            if self._ring.owner(slot) is not holder:
                waiting = len(self._draining.get(slot, ()))
                found[holder].append(DrainingSlot(slot, entries, waiting))
        return found

    @property
    def draining_buckets(self) -> int:
        return len(self._moved) if self._policy.by_entry_buckets else 0

    # -- consumers

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignError if its mode differs from the others', or its ranges overlap
        theirs.
        """
        check_same_mode(consumer, self._policy)
        self._ring.add(consumer)
        super().add(consumer)
        self._route_waiting_again()

    def remove(self, consumer: Consumer) -> None:
        self._ring.remove(consumer)
        super().remove(consumer)
        self._route_waiting_again()

    def _route_waiting_again(self) -> None:
        """Routes all waiting entries again, because the owners have changed."""
        waiting = [item for entries in self._waiting.values() for item in entries.items()]
        draining = [(at, slot) for slot, held in self._draining.items() for at in held]
        self._waiting.clear()
        self._draining.clear()
        self._parked = 0
        owner = self._ring.owner
        self._moved = {s: held for s, held, _ in self._in_flight.held() if owner(s) is not held}
        for position, slot in sorted(waiting + draining):
            self._wait(position, slot, self._ring.owner(slot))

    # -- delivering

    def dispatch(self) -> bool:
        """Like SharedDispatcher.dispatch."""
        bytes_left = ROUND_BYTES
        for _ in range(ROUND_STEPS):
            handled = self._step(bytes_left)
            if not handled:
                return False
            bytes_left -= handled
            if bytes_left <= 0:
                break
        return True

    def _step(self, max_bytes: int) -> int:
        """Serve consumers that can take messages; returns the bytes handled, 0 if nothing is
        possible now.
        """
        budget = {
            consumer: allowance
            for consumer in self._consumers()
            if (allowance := self._allowance(consumer)) > 0
        }
        if not budget:
            self._reader.skip_invisible()
            return 0
        if self._may_wait():
            self._return_due()
        if self._returned:
            # Returned entries precede everything that waits: route them first, or let it wait for
            # them.
            handled = self._route_from(self._returned, budget, max_bytes)
            if handled or self._returned:
                return handled
        return self._serve_waiting(budget, max_bytes) or self._read_on(budget, max_bytes)

    def _serve_waiting(self, budget: dict[Consumer, int], max_bytes: int) -> int:
        for consumer, allowance in budget.items():
            entries = self._waiting.get(consumer)
            if entries and (sent := self._serve(consumer, entries, allowance, max_bytes)):
                return sent
        return 0

    def _serve(
        self, consumer: Consumer, entries: WaitingEntries, allowance: int, max_bytes: int
    ) -> int:
        positions = self._first_wanted(entries, allowance)
        if not positions:
            return 1  # there is room for others now
        ledger_id, first = positions[0]
        found = self._reader.reread(ledger_id, first, positions[-1].entry_id, max_bytes)
        if found is None:
            return 0
        wanted = {at.entry_id for at in positions}
        part = found.pick([at for at, entry in enumerate(found.entry_ids) if entry in wanted])
        part = part.part(0, part.affordable(allowance))
        slots = entries.remove((ledger_id, entry_id) for entry_id in part.entry_ids)
        self._parked -= len(slots)
        return self._deliver_slots(consumer, part, slots)

    def _first_wanted(self, entries: WaitingEntries, limit: int) -> list[Position]:
        """The first waiting entries that are close together; acknowledged entries stop waiting."""
        while entries:
            positions = entries.first(limit, MAX_RUN_ENTRIES)
            wanted = [at for at in positions if self._reader.wants(at)]
            if wanted:
                return wanted
            self._parked -= len(entries.remove(positions))
        return []

    def _read_on(self, budget: dict[Consumer, int], max_bytes: int) -> int:
        return self._route_from(self._unread, budget, max_bytes) if self._may_wait() else 0

    def _may_wait(self) -> bool:
        """Whether entries that are read now may wait if their consumers cannot take them."""
        consumers = sum(map(len, self._levels.values()))
        return self._parked < min(MAX_WAITING, MAX_WAITING_PER_CONSUMER * consumers)

    def _route_from(self, source: Source, budget: dict[Consumer, int], max_bytes: int) -> int:
        delivery = source.peek(self._allowed(sum(budget.values())), max_bytes)
        if delivery is None:
            return 0
        if not delivery.entries:
            return 1  # entries were passed over
        source.advance(delivery)
        self._route(delivery, budget)
        return sum(map(len, delivery.entries))

    def _route(self, delivery: Delivery, budget: dict[Consumer, int]) -> None:
        taken: dict[Consumer, tuple[list[int], list[int]]] = {}  # indexes and slots
        for index, entry in enumerate(delivery.entries):
            slot = self._slot_of(entry)
            owner = self._ring.owner(slot)
            if owner is None or not self._can_take(owner, slot, budget):
                self._wait(Position(delivery.ledger_id, delivery.entry_ids[index]), slot, owner)
                continue
            budget[owner] -= delivery.message_counts[index]
            indexes, slots = taken.setdefault(owner, ([], []))
            indexes.append(index)
            slots.append(slot)
        for consumer, (indexes, slots) in taken.items():
            self._deliver_slots(consumer, delivery.pick(indexes), slots)

    def _can_take(self, owner: Consumer, slot: int, budget: dict[Consumer, int]) -> bool:
        if budget.get(owner, 0) <= 0 or self._waiting.get(owner):
            return False
        return not self._is_draining(slot, owner)

    def _is_draining(self, slot: int, owner: Consumer | None) -> bool:
        if self._policy.allow_out_of_order:
            return False
        holder = self._in_flight.holder(slot)
        return holder is not None and holder is not owner

    def _wait(self, position: Position, slot: int, owner: Consumer | None) -> None:
        if self._is_draining(slot, owner):
            self._draining[slot].append(position)
            self._parked += 1
        else:
            self._parked += self._waiting[owner].add(position, slot)

    def _deliver_slots(self, consumer: Consumer, delivery: Delivery, slots: list[int]) -> int:
        for entry_id, slot in zip(delivery.entry_ids, slots, strict=True):
            self._in_flight.add((delivery.ledger_id, entry_id), slot, consumer)
        return self._deliver(consumer, delivery)

    # -- acknowledged or given back

    def release(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> None:
        super().release(consumer, positions)
        self._free(positions)

    def give_back(self, consumer: Consumer, positions: Sequence[Position] | None) -> EntryIds:
        returned = super().give_back(consumer, positions)
        self._free(
            (ledger_id, entry_id)
            for ledger_id, entry_ids in returned.items()
            for entry_id in entry_ids
        )
        return returned

    def _free(self, positions: Iterable[tuple[int, int]]) -> None:
        self._route_drained(self._in_flight.remove(positions))

    def restore(self, positions: Sequence[Position]) -> None:
        super().restore(positions)
        self._free(positions)

    def skipped_to(self, mark: Position) -> None:
        super().skipped_to(mark)
        self._route_drained(self._in_flight.remove_up_to(mark))

    def _route_drained(self, slots: Iterable[int]) -> None:
        """Entries that wait for a slot without a holder go to its current owner."""
        for slot in slots:
            if self._moved and (holder := self._moved.pop(slot, None)) is not None:
                holder.slots_drained += 1
            drained = self._draining.pop(slot, ())
            self._parked -= len(drained)
            for position in drained:
                self._wait(position, slot, self._ring.owner(slot))
            if drained:
                self._resume()

    def rewind(self) -> None:
        super().rewind()
        self._in_flight.clear()
        self._moved.clear()
        self._waiting.clear()
        self._draining.clear()
        self._parked = 0
