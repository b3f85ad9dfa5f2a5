"""A consumer in the broker: its permits, its unacknowledged messages, its connection.

The session that owns the connection implements `ConsumerSink`; dispatchers decide what a consumer
gets and call `deliver`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

from pybroker.broker.dispatch.delivery import Delivery, EntryIds
from pybroker.broker.dispatch.left_out import LeftOut
from pybroker.broker.dispatch.life import Life
from pybroker.broker.subscriptions.last_times import LastTimes

MAX_PERMITS: Final = 2**31 - 1


class SubscriptionType(IntEnum):
    """Values of CommandSubscribe.SubType."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def single_active(self) -> bool:
        return self in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


class KeySharedMode(IntEnum):
    AUTO_SPLIT = 0
    STICKY = 1


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """How a Key_Shared subscription splits the hash ring; `ranges` (closed) only with STICKY."""

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    ranges: tuple[tuple[int, int], ...] = ()
    allow_out_of_order: bool = False
    # Set: consumers share a segment by its entry buckets. Counts entries that no bucket has.
    violations: Counter[str] | None = field(default=None, compare=False)

    @property
    def by_entry_buckets(self) -> bool:
        return self.violations is not None


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A client's SUBSCRIBE request, and its identity."""

    consumer_id: int  # unique on its connection
    name: str
    priority_level: int = 0  # 0 is served first
    properties: Mapping[str, str] = field(default_factory=dict)
    read_compacted: bool = False
    key_shared: KeySharedPolicy | None = None
    connection: int = 0  # the connection's number
    address: str = ""  # host:port
    client_version: str = ""
    app_id: str | None = None  # the client's role; None without authentication
    takes_any_schema: bool = False  # accepts whatever schema the topic has or gets
    connected_since_ms: int = 0
    request_id: int = 0
    epoch: int | None = None  # of its requests for redelivery: PIP-84
    transacts: bool = False  # its client has connected to a transaction coordinator
    takes_stored: bool = False  # its sink takes entries as they are stored, RecordBatches too


class ConsumerSink(Protocol):
    """The connection's side of a consumer."""

    @property
    def writable(self) -> bool:
        """False while the transport is paused; on resume the session notifies the subscription."""
        ...

    def deliver(
        self,
        consumer: "Consumer",
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        redelivery_counts: Sequence[int] | None,
        unacked_indexes: Mapping[int, tuple[int, int]] | None,
    ) -> None:
        """Write one MESSAGE per entry, all at once; `unacked_indexes` as in Delivery."""
        ...

    def active_consumer_changed(self, consumer: "Consumer", is_active: bool) -> None:
        """Tell the client, if its protocol version supports that."""
        ...

    def reached_end_of_topic(self, consumer: "Consumer") -> None:
        """Tell the client, if it supports that."""
        ...

    def close_consumer(self, consumer: "Consumer", reason: str) -> None:
        """Tell the client that the broker has closed the consumer; it may subscribe again."""
        ...


class UnackedEntries:
    """A consumer's unacknowledged messages, by ledger and entry."""

    __slots__ = ("_ledgers", "messages")

    def __init__(self) -> None:
        self._ledgers: dict[int, dict[int, int]] = {}
        self.messages = 0

    def add(self, delivery: Delivery, messages: int) -> None:
        """Add the delivery's entries, none of which may be here already."""
        entries = self._ledgers.setdefault(delivery.ledger_id, {})
        entries.update(zip(delivery.entry_ids, delivery.message_counts, strict=True))
        self.messages += messages

    def release(self, positions: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Forget these entries; returns those that were not here."""
        missing: list[tuple[int, int]] = []
        ledgers = self._ledgers
        released = 0
        for position in positions:
            ledger_id, entry_id = position
            entries = ledgers.get(ledger_id)
            messages = None if entries is None else entries.pop(entry_id, None)
            if messages is None:
                missing.append(position)
                continue
            released += messages
            if not entries:
                del ledgers[ledger_id]
        self.messages -= released
        return missing

    def among(self, ledger_id: int, entry_ids: set[int]) -> set[int]:
        """The entries among `entry_ids` that are here."""
        entries = self._ledgers.get(ledger_id)
        return set() if entries is None else entry_ids & entries.keys()

    def keep(self, position: tuple[int, int], messages: int) -> bool:
        """Leave only `messages` of this batch unacknowledged; False if the batch is not here."""
        entries = self._ledgers.get(position[0])
        if entries is None or position[1] not in entries:
            return False
        self.messages += messages - entries[position[1]]
        entries[position[1]] = messages
        return True

    def take(self, positions: Iterable[tuple[int, int]]) -> EntryIds:
        """Forget these entries; returns those that were here."""
        taken: EntryIds = {}
        for position in positions:
            if not self.release((position,)):
                taken.setdefault(position[0], []).append(position[1])
        return taken

    def forget_up_to(self, position: tuple[int, int]) -> None:
        """Forget the entries at or before `position`."""
        ledger_id, last = position
        for passed in [known for known in self._ledgers if known < ledger_id]:
            self.messages -= sum(self._ledgers.pop(passed).values())
        entries = self._ledgers.pop(ledger_id, {})
        kept = {entry_id: count for entry_id, count in entries.items() if entry_id > last}
        self.messages -= sum(entries.values()) - sum(kept.values())
        if kept:
            self._ledgers[ledger_id] = kept

    def take_all(self) -> EntryIds:
        """Forget all entries; returns them in log order."""
        taken = {ledger_id: sorted(entries) for ledger_id, entries in sorted(self._ledgers.items())}
        self._ledgers.clear()
        self.messages = 0
        return taken


class Consumer:
    """`permits` counts messages, not entries, and goes below zero when a batch overdraws it."""

    __slots__ = (
        "at_end",
        "blocked",
        "bytes_out",
        "closed_by_client",
        "consumer_id",
        "entries_acknowledged",
        "entries_out",
        "left_out",
        "life",
        "messages_out",
        "messages_redelivered",
        "name",
        "permits",
        "priority_level",
        "read_compacted",
        "request",
        "sink",
        "slots_drained",
        "times",
        "unacked",
    )

    def __init__(self, request: SubscribeRequest, sink: ConsumerSink) -> None:
        self.request = request
        self.sink = sink
        # Copied here for dispatch, to save a lookup.
        self.consumer_id = request.consumer_id
        self.name = request.name
        self.priority_level = request.priority_level
        self.read_compacted = request.read_compacted
        self.permits = 0
        self.unacked = UnackedEntries()
        self.left_out = LeftOut()
        self.life: Life | None = None  # on Exclusive and Failover
        self.closed_by_client = False  # its client may return as a new consumer
        self.at_end = False  # the client was told of the topic's end
        self.blocked = False  # too many unacknowledged messages
        self.times = LastTimes()
        self.entries_out = 0
        self.entries_acknowledged = 0  # without partly acknowledged ones
        self.slots_drained = 0  # Key_Shared: hash slots drained after moving to another owner
        self.messages_out = 0
        self.bytes_out = 0
        self.messages_redelivered = 0

    def __repr__(self) -> str:
        return f"Consumer({self.name!r})"

    @property
    def rank(self) -> tuple[str, int, int]:
        """The order of consumers: by name; equal or missing names by age. A client subscribes to
        partitions and topics in sequence over its connections, so the order is the same on all of
        them.
        """
        return self.name, self.request.connection, self.consumer_id

    def begins_epoch(self, epoch: int) -> bool:
        """See Life.begins_epoch; False on other types of subscriptions."""
        return self.life is not None and self.life.begins_epoch(epoch)

    def add_permits(self, permits: int) -> None:
        self.permits = min(self.permits + permits, MAX_PERMITS)

    def deliver(self, delivery: Delivery, redelivery_counts: Sequence[int] | None = None) -> int:
        """Write the entries and use up permits; returns their bytes."""
        messages = sum(delivery.message_counts)
        size = sum(map(len, delivery.entries))
        self.permits -= messages
        self.entries_out += len(delivery.entries)
        self.messages_out += messages
        self.bytes_out += size
        if redelivery_counts is not None:
            self.messages_redelivered += sum(1 for count in redelivery_counts if count)
        if delivery.withheld or delivery.late or self.left_out:
            self.left_out.delivered(delivery)
        self.sink.deliver(
            self,
            delivery.ledger_id,
            delivery.entry_ids,
            delivery.entries,
            redelivery_counts,
            delivery.unacked_indexes,
        )
        return size
