"""A sink's or source's session at the broker: a client, and everything created on it.

If anything in a session fails, the whole session is discarded: a new one starts from what the
broker knows. Consumers here receive no messages. They exist to read their subscription's cursor and
to acknowledge. Failover allows consumers of several processes side by side; the transactions, not
the consumers, decide which process may move the cursor.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Final, TypeVar

from pybroker.base.errors import (
    InvalidTxnStatus,
    PulsarError,
    TransactionConflict,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from pybroker.base.names import TopicName
from pybroker.client import (
    AlreadyClosed,
    Client,
    ConnectError,
    Consumer,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    Message,
    MessageId,
    Producer,
    Reader,
    ServiceNotReady,
    SubscriptionMode,
    Timeout,
    TopicSchema,
    Transaction,
    TransactionOutcomeUnknown,
)
from pybroker.spark.offsets import CursorName, Position, Progress, Span
from pybroker.spark.reading.limits import Sample

_READ_TIMEOUT_MS = 10_000
# How long a reader waits before it asks whether there is anything to wait for.
_READ_PAUSE_MS = 500
_READ_MESSAGES = 1000
_LAST_TIME_MS = 2**63 - 1
_SAMPLE_MESSAGES = 100
# All messages of a transaction may be in flight; the batch itself limits them.
_MAX_PENDING_MESSAGES = 1_000_000

# A new connection, and a fresh look at cursors and markers, may resolve these.
MAY_HEAL: Final = (
    AlreadyClosed,
    ConnectError,
    InvalidTxnStatus,
    ServiceNotReady,
    Timeout,
    TransactionConflict,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
    TransactionOutcomeUnknown,
)
BROKER_AWAY: Final = (ConnectError, Timeout, AlreadyClosed, ServiceNotReady)
# How long a broker may be unavailable before the query, or a task, fails.
PATIENCE_S: Final = 120.0
PAUSE_S: Final = 0.5

# Fewer topics are asked about one after another: threads would cost more than they save.
_FEW: Final = 16
_THREADS: Final = 8

Connect = Callable[[str], Client]
Item = TypeVar("Item")
Result = TypeVar("Result")


def connect(service_url: str) -> Client:
    return Client(service_url, enable_transaction=True)


class Session:
    def __init__(self, client: Client) -> None:
        self.client = client
        self._consumers: dict[CursorName, Consumer] = {}
        self._producers: dict[str, Producer] = {}
        self._readers: dict[str, Reader] = {}

    @property
    def incarnation(self) -> tuple[int, int]:
        """Changes whenever the broker may have been restarted."""
        return id(self), self.client.connections_made()

    def close(self) -> None:
        with contextlib.suppress(PulsarError):
            self.client.close()

    @cached_property
    def asks_about_many(self) -> bool:
        """Whether the broker answers about many topics at once and lists all their partitions."""
        return self.client.answers_topic_questions()

    # --- cursors ----------------------------------------------------------------------------

    def cursor(
        self,
        name: CursorName,
        initial_position: InitialPosition = InitialPosition.Earliest,
        create: bool = False,
    ) -> Position:
        """The subscription's mark-delete position. Creates the subscription if it is missing, and
        with `create` the topic. Raises TopicNotFound."""
        consumer = self._consumer(name, initial_position, create)
        return position_of(consumer.get_mark_delete_position())

    def last_position(self, topic: str, create: bool = True) -> Position:
        """The last deliverable entry; entry -1 if there is none. Without `create` a topic that does
        not exist is not created: raises TopicNotFound."""
        if topic not in self._readers:
            self._readers[topic] = self.client.create_reader(
                topic, MessageId.latest, receiver_queue_size=1, create_topic=create
            )
        return position_of(self._readers[topic].get_last_message_id())

    def log_end(self, topic: str) -> Position:
        """The end of a topic's log, deliverable or not."""
        with self.client.subscribe(
            topic,
            f"log-end-{uuid.uuid4()}",
            subscription_mode=SubscriptionMode.NonDurable,
            initial_position=InitialPosition.Latest,
            receiver_queue_size=1,
        ) as consumer:
            return position_of(consumer.get_mark_delete_position())

    def forget(self, topic: str) -> None:
        """Call when a topic is gone: its reader and consumers are useless even if it is created
        again."""
        with contextlib.suppress(PulsarError):
            if (reader := self._readers.pop(topic, None)) is not None:
                reader.close()
        for name in [each for each in self._consumers if each.topic == topic]:
            with contextlib.suppress(PulsarError):
                self.release(name)

    def release(self, name: CursorName) -> None:
        """Leaves the subscription to others until it is used again."""
        if (consumer := self._consumers.pop(name, None)) is not None:
            consumer.close()

    def delete(self, name: CursorName) -> None:
        """Deletes the subscription; a missing one is created first."""
        self._consumer(name, InitialPosition.Latest).unsubscribe()
        del self._consumers[name]

    def backlog(self, name: CursorName) -> int:
        """Entries that the subscription has not acknowledged."""
        return self._consumer(name, InitialPosition.Earliest).get_backlog()

    @contextlib.contextmanager
    def receiving(self, name: CursorName) -> Iterator[Consumer]:
        """A consumer that receives messages: this session's only one on the subscription."""
        self.release(name)
        with self.client.subscribe(
            name.topic, name.subscription, consumer_type=ConsumerType.Failover
        ) as consumer:
            yield consumer

    def cursors(self, progress: Progress) -> dict[CursorName, Position]:
        """Each cursor's position, counting messages only.

        A cursor passes over entries that are not messages (markers, aborted ones), so a cursor
        after the span's beginning may still have all of the span's messages before it.
        """
        return {name: self._settled_cursor(name, span) for name, span in progress.items()}

    def _settled_cursor(self, name: CursorName, span: Span) -> Position:
        cursor = self.cursor(name)
        if span.after < cursor < span.to:
            first = self.first_position_after(name.topic, span.after)
            if first is not None and first > cursor:
                return span.after
        return cursor

    def acknowledge(self, name: CursorName, position: Position, txn: Transaction) -> None:
        """Moves the cursor in `txn`. Raises TransactionConflict if another transaction holds it, or
        it is past `position`."""
        consumer = self._consumer(name, InitialPosition.Earliest)
        # Nobody reads what it was given. Without this, the broker would refuse to acknowledge if a
        # transaction that held those messages has committed since.
        consumer.redeliver_unacknowledged_messages()
        consumer.acknowledge_cumulative(message_id_at(name.topic, position), txn=txn)

    def acknowledge_up_to(self, name: CursorName, position: Position) -> None:
        """Moves the cursor without a transaction, forward only; a crash may undo the last second.
        Creates the subscription if it is missing."""
        consumer = self._consumer(name, InitialPosition.Earliest)
        if position.entry_id >= 0:
            consumer.acknowledge_cumulative(message_id_at(name.topic, position))

    def _consumer(
        self, name: CursorName, initial_position: InitialPosition, create: bool = False
    ) -> Consumer:
        """Without `create`, a topic that is deleted meanwhile is not created again either."""
        if name not in self._consumers:
            self._consumers[name] = self.client.subscribe(
                name.topic,
                name.subscription,
                consumer_type=ConsumerType.Failover,
                initial_position=initial_position,
                receiver_queue_size=1,
                create_topic=create,
            )
        return self._consumers[name]

    # --- messages ---------------------------------------------------------------------------

    def partitions(self, topic: str, create: bool = True) -> Sequence[str]:
        """Without `create` a topic that does not exist is not created: raises TopicNotFound, if the
        broker reports it; else `last_position` does."""
        names = self.client.get_topic_partitions(topic, create)
        return [str(TopicName.parse(name)) for name in names]

    def producer(
        self, topic: str, schema: TopicSchema | None = None, chunks: bool = False
    ) -> Producer:
        """The broker names the producer, differently for each session: no name outlives a session's
        sequence ids, so deduplication never takes a rerun's messages for the aborted ones.
        `chunks`: a message too large for an entry is split."""
        if topic not in self._producers:
            self._producers[topic] = self.client.create_producer(
                topic,
                max_pending_messages=_MAX_PENDING_MESSAGES,
                block_if_queue_full=True,
                schema=schema,
                chunking_enabled=chunks,
            )
        return self._producers[topic]

    def first_position_after(self, topic: str, position: Position) -> Position | None:
        """The position of the first deliverable message after `position`."""
        reader = self.reader(topic, position)
        try:
            return _first_of(reader)
        finally:
            reader.close()

    def message_from(self, topic: str, position: Position) -> tuple[Position, int] | None:
        """The first message from `position` on: its position and its publish time in ms."""
        reader = self.reader(
            topic, position, start_message_id_inclusive=True, receiver_queue_size=1
        )
        try:
            some = _some_of(reader, 1)
        finally:
            reader.close()
        if not some:
            return None
        return position_of(some[0].message_id()), some[0].publish_timestamp()

    def before_time(self, topic: str, time_ms: int) -> Position:
        """The position up to which messages were published before a time, in ms since 1970."""
        reader = self.reader(topic, Position(-1, -1))
        try:
            reader.seek(min(time_ms, _LAST_TIME_MS))
            if (first := _first_of(reader)) is None:
                return self.last_position(topic)
            return first._replace(entry_id=first.entry_id - 1)
        finally:
            reader.close()

    def entries_behind(self, topic: str, position: Position) -> int:
        """The number of entries after `position`, including markers and aborted messages."""
        if position.entry_id >= 0:  # A broker also counts the entry at which a reader begins.
            position = position._replace(entry_id=position.entry_id + 1)
        reader = self.reader(topic, position)
        try:
            return reader.get_backlog()
        finally:
            reader.close()

    def sample(self, topic: str, after: Position) -> Sample | None:
        """A sample of the entries after `after`; None if there are none."""
        reader = self.reader(topic, after, receiver_queue_size=_SAMPLE_MESSAGES)
        try:
            messages = _some_of(reader, _SAMPLE_MESSAGES)
        finally:
            reader.close()
        entries = sum(1 / max(1, message.message_id().batch_size()) for message in messages)
        if not entries:
            return None
        size_bytes = sum(len(message.data()) for message in messages)
        return Sample(len(messages) / entries, size_bytes / entries)

    def publish(self, topic: str, data: bytes, txn: Transaction | None = None) -> Position:
        """Publishes one message as its own entry; returns its position."""
        return position_of(self.producer(topic).send(data, txn=txn))

    def read_to_end(self, topic: str, after: Position) -> Iterator[tuple[Position, bytes]]:
        """The messages after `after` that can be delivered now."""
        reader = self.reader(topic, after)
        try:
            while messages := _some_of(reader, _READ_MESSAGES):
                for message in messages:
                    yield position_of(message.message_id()), message.data()
        finally:
            reader.close()

    def reader(self, topic: str, after: Position, **options: Any) -> Reader:
        """The reader delivers encrypted messages undecrypted: they must not be skipped silently."""
        return self.client.create_reader(
            topic,
            message_id_at(topic, after),
            crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
            **options,
        )


def each_of(items: Sequence[Item], ask: Callable[[Item], Result]) -> list[Result]:
    """The answers in order; if there are many items, several are asked about at a time."""
    if len(items) < _FEW:
        return [ask(item) for item in items]
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(ask, items))


def _first_of(reader: Reader) -> Position | None:
    some = _some_of(reader, 1)
    return position_of(some[0].message_id()) if some else None


def _some_of(reader: Reader, most: int) -> list[Message]:
    """The next messages; empty if there are none. A reader can tell whether a topic's last entries
    are whole messages or chunks of a lost one only once they have arrived. Raises Timeout."""
    for _ in range(_READ_TIMEOUT_MS // _READ_PAUSE_MS):
        if not reader.has_message_available():
            return []
        if messages := reader.batch_read(most, _READ_PAUSE_MS):
            return messages
    raise Timeout(f"No message of {reader.topic()} came within {_READ_TIMEOUT_MS / 1000} s")


def message_id_at(topic: str, position: Position) -> MessageId:
    return MessageId(TopicName.parse(topic).partition, *position)


def position_of(message_id: MessageId) -> Position:
    return Position(message_id.ledger_id(), message_id.entry_id())
