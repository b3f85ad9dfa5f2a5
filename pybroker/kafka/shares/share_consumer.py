"""A member of a share group on one partition: a consumer of the Shared subscription of that name.

    Fetch: permits for the dispatcher → entries arrive → `take` hands out records, locked
    acknowledged: `decide` → the cursor; released, or the lock has run out → redelivered
Between two fetches there are no permits, so nothing arrives that nobody asked for.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from managed_ledger.position import Position
from pybroker.base.errors import ServiceNotReady
from pybroker.broker.subscriptions.consumer import Consumer, SubscribeRequest, SubscriptionType
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.kafka.log.offsets import Placed
from pybroker.kafka.log.partition_log import PartitionLog
from pybroker.kafka.log.reading import AsBatch, converted_batch, stored_batch
from pybroker.kafka.shares.acquired import AckBatch, AcquiredEntry, AcquiredRecords, mask, runs
from pybroker.kafka.shares.handed_out import HandedOut
from pybroker.kafka.shares.share_configs import ShareConfigs

log = logging.getLogger(__name__)


class Arrived(NamedTuple):
    """An entry from the dispatcher. `unacked` are the indexes to deliver; None: all."""

    position: Position
    size_bytes: int
    redelivery_count: int
    unacked: int | None
    expires_s: float


class Range(NamedTuple):
    """Acquired records, with both ends."""

    first: int
    last: int
    delivery_count: int


@dataclass(slots=True)
class Taken:
    batches: list[bytes] = field(default_factory=list)
    acquired: list[Range] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0

    def add(self, entry: AcquiredEntry, ranges: Iterable[Range]) -> None:
        self.batches.append(entry.batch)
        self.size_bytes += len(entry.batch)
        for each in ranges:
            self.acquired.append(each)
            self.records += each.last - each.first + 1


class ShareConsumer:
    """Implements ConsumerSink. Create it by `joined`."""

    def __init__(
        self, partition: PartitionLog, subscription: Subscription, request: SubscribeRequest
    ) -> None:
        self.partition = partition
        self.closed = False
        self.when_arrived: Callable[[], None] | None = None
        self._subscription = subscription
        self._consumer = Consumer(request, self)
        self._configs = ShareConfigs()
        self._arrived: deque[Arrived] = deque()
        self._arrived_bytes = self._room_bytes = 0
        self._begun: AcquiredEntry | None = None  # a batch of which records are left to hand out
        self._acquired = AcquiredRecords()
        self._handed_out = HandedOut()  # that of all members, once it has joined
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def joined(
        cls, partition: PartitionLog, subscription: Subscription, request: SubscribeRequest
    ) -> "ShareConsumer":
        """Raises ConsumerBusy, if the subscription has consumers of another type; PulsarError."""
        made = cls(partition, subscription, request)
        try:
            await subscription.add_consumer(made._consumer, SubscriptionType.SHARED)
        except BaseException:
            subscription.remove_consumer(made._consumer)
            raise
        if not made.closed:  # not sooner: the last member may have left meanwhile
            made._handed_out = partition.kept.setdefault(subscription.name, made._handed_out)
        return made

    # -- ConsumerSink

    @property
    def writable(self) -> bool:
        return self._arrived_bytes < self._room_bytes

    def deliver(
        self,
        consumer: Consumer,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        redelivery_counts: Sequence[int] | None,
        unacked_indexes: Mapping[int, tuple[int, int]] | None,
    ) -> None:
        counts = redelivery_counts or [0] * len(entry_ids)
        for entry_id, entry, count in zip(entry_ids, entries, counts, strict=True):
            bits = None if unacked_indexes is None else unacked_indexes.get(entry_id)
            unacked = None if bits is None else bits[0]
            at = Position(ledger_id, entry_id)
            self._arrived.append(Arrived(at, len(entry), count, unacked, self._lock_ends_s))
            self._arrived_bytes += len(entry)
        self._expire_later()
        if self.when_arrived is not None:
            self.when_arrived()

    def active_consumer_changed(self, consumer: Consumer, is_active: bool) -> None:
        """Shared has no active consumer."""

    def reached_end_of_topic(self, consumer: Consumer) -> None:
        """Kafka's clients do not know of it."""

    def close_consumer(self, consumer: Consumer, reason: str) -> None:
        """The topic is unloaded, or its cursor moves: what was acquired counts no longer."""
        self._handed_out.clear()
        self._forget_counts()
        self._end()

    # -- fetching

    @property
    def arrived_bytes(self) -> int:
        """Of what may be taken."""
        return self._arrived_bytes + (0 if self._begun is None else len(self._begun.batch))

    def ask(self, records: int, room_bytes: int, configs: ShareConfigs) -> None:
        """Lets about so many records arrive, beyond those that are here."""
        self._configs, self._room_bytes = configs, room_bytes
        free = configs.max_record_locks - self._consumer.unacked.messages
        self._consumer.permits = max(0, min(records, free))
        self._subscription.flow(self._consumer, 0)

    def ask_no_more(self) -> None:
        self._consumer.permits = 0

    async def take(
        self, most_records: int, most_bytes: int, is_strict: bool, at_least_one: bool
    ) -> Taken:
        """Hands out what has arrived: whole batches, the last of which may exceed `most_records`,
        unless `is_strict`. With `at_least_one`, the first may exceed `most_bytes`. Raises
        ManagedLedgerError.
        """
        taken = Taken()
        while not self.closed and taken.records < most_records:
            entry = self._begun or await self._next()
            if entry is None:
                break
            self._begun = entry
            is_first = at_least_one and not taken.batches
            if taken.size_bytes + len(entry.batch) > most_bytes and not is_first:
                break
            most = most_records - taken.records if is_strict else entry.messages
            taken.add(entry, self._ranges(entry, entry.acquire(most)))
            entry.expires_s = self._lock_ends_s
            self._acquired.add(entry)
            if not entry.waiting:
                self._begun, entry.batch = None, b""  # the client has it
        self._expire_later()
        return taken

    def _ranges(self, entry: AcquiredEntry, bits: int) -> list[Range]:
        first = entry.first_offset
        found = [
            Range(first + start, first + stop - 1, count)
            for count, part in self._handed_out.by_count(entry, bits)
            for start, stop in runs(part)
        ]
        return sorted(found)

    @property
    def _lock_ends_s(self) -> float:
        return asyncio.get_running_loop().time() + self._configs.record_lock_duration_ms / 1000

    async def _next(self) -> AcquiredEntry | None:
        """The next entry that arrived and can be delivered."""
        while self._arrived and not self.closed:
            arrived = self._arrived.popleft()
            self._arrived_bytes -= arrived.size_bytes
            try:
                entry = await self._read(arrived)
            except BaseException:
                self._subscription.give_back(self._consumer, [arrived.position])
                raise
            if self.closed or entry is None:
                continue
            self._give_up(entry)
            if entry.waiting:
                return entry
        return None

    def _give_up(self, entry: AcquiredEntry) -> None:
        """The records that were delivered too often."""
        limit = self._configs.delivery_count_limit
        bits = self._handed_out.too_often(entry, limit)
        if not bits:
            return
        log.info(
            "%s: %d records of the batch at offset %d were delivered %d times: they are given up",
            self._subscription, bits.bit_count(), entry.first_offset, limit,
        )  # fmt: skip
        entry.unacked &= ~bits
        entry.waiting &= ~bits
        self._settle([entry])

    async def _read(self, arrived: Arrived) -> AcquiredEntry | None:
        """None for a chunk: it is acknowledged with the last one of its message."""
        ledger, at = self.partition.topic.ledger, arrived.position
        run = ledger.read_cached(at, at, 1, 1) or await ledger.read(at, at, 1, 1)
        if run is None or not (messages := run.message_counts[0]):
            return None
        entry = run.entries[0]
        first = await self.partition.offsets.offset_of(at, entry, messages)
        placed = Placed(at.entry_id, entry, messages, first)
        stored = stored_batch(placed)
        found = await converted_batch(ledger, at, placed) if stored is None else AsBatch(stored)
        if found is None:
            return None
        unacked = mask(0, messages) if arrived.unacked is None else arrived.unacked
        return AcquiredEntry(
            at, first, messages, unacked, found.batch, arrived.redelivery_count + 1,
            self._lock_ends_s, found.earlier, waiting=unacked,
        )  # fmt: skip

    # -- what the member says

    def decide(self, batches: Sequence[AckBatch], may_renew: bool = False) -> None:
        """Applies all of them, or none; await `stored`. Raises KafkaError, ServiceNotReady."""
        if self.closed:
            raise ServiceNotReady(f"{self._subscription} has moved: fetch its records again")
        self._settle(self._acquired.decide(batches, self._lock_ends_s, may_renew))
        self._expire_later()

    async def stored(self) -> None:
        """Returns when what was decided is durable. Raises ManagedLedgerError."""
        await self._subscription.cursor.flush()

    def _settle(self, entries: Sequence[AcquiredEntry]) -> None:
        whole: list[Position] = []
        for entry in entries:
            if not entry.unacked:
                whole += (entry.position, *entry.chunks)
            else:
                self._subscription.acknowledge_indexes(
                    self._consumer, entry.position, entry.unacked, entry.messages
                )
        if whole:
            self._acknowledge(whole)
        over = [each for each in entries if each.is_over]
        for entry in over:
            self._acquired.remove(entry)
        self._give_back([each for each in over if each.released])

    def _acknowledge(self, positions: Sequence[Position]) -> None:
        for each in positions:
            self._handed_out.forget(each)
        self._subscription.acknowledge(self._consumer, positions)

    def _give_back(self, entries: Sequence[AcquiredEntry]) -> None:
        """Counted: the member may have died of them."""
        for each in entries:
            self._handed_out.came_back(each, self._configs.delivery_count_limit)
        if entries:
            self._subscription.redeliver(self._consumer, [each.position for each in entries])

    # -- time

    def _expire_later(self) -> None:
        if self._timer is not None or self.closed:
            return
        ends_s = [each.expires_s for each in self._acquired.entries()]
        ends_s += [each.expires_s for each in (self._unseen, *islice(self._arrived, 1)) if each]
        if ends_s:
            self._timer = asyncio.get_running_loop().call_at(min(ends_s), self._expire)

    @property
    def _unseen(self) -> AcquiredEntry | None:
        """A batch that did not fit in the last response: the member was given nothing of it."""
        begun = self._begun
        return None if begun is None or self._acquired.has(begun) else begun

    def _expire(self) -> None:
        """Gives back the records whose lock has run out."""
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        self._give_back_unseen(now_s)
        late = [each for each in self._acquired.entries() if each.expires_s <= now_s]
        for entry in late:
            self._acquired.remove(entry)
            if entry is self._begun:
                self._begun = None
        self._give_back(late)
        self._expire_later()

    def _give_back_unseen(self, now_s: float) -> None:
        """What has arrived and was not handed out, because the member asks for nothing."""
        late: list[Position] = []
        while self._arrived and self._arrived[0].expires_s <= now_s:
            arrived = self._arrived.popleft()
            self._arrived_bytes -= arrived.size_bytes
            late.append(arrived.position)
        if (unseen := self._unseen) is not None and unseen.expires_s <= now_s:
            self._begun = None
            late.append(unseen.position)
        if late:
            self._subscription.give_back(self._consumer, late)

    # -- the end

    def close(self) -> None:
        """Gives back all that is undecided. Idempotent."""
        if self.closed:
            return
        given = self._acquired.entries()
        self._end()
        self._give_back(given)
        self._subscription.remove_consumer(self._consumer)
        self._forget_counts()

    def _forget_counts(self) -> None:
        if not (self._handed_out or self._subscription.consumers):
            self.partition.kept.pop(self._subscription.name, None)

    def _end(self) -> None:
        self.closed = True
        self._arrived.clear()
        self._acquired.clear()
        self._begun = None
        self._arrived_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.when_arrived is not None:
            self.when_arrived()
