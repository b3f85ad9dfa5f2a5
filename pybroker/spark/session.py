"""What the sink and the source hold at the broker: a client, and whatever hangs on it.

A session is thrown away whole when anything in it fails: a new one starts from what the broker
knows. Consumers here take no messages. They exist to read their subscription's cursor and to
acknowledge; Failover lets those of several processes stand beside each other, and the transactions,
not the consumers, decide which of them may move the cursor.
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
# After so long a reader asks whether there is anything to wait for.
_READ_PAUSE_MS = 500
_READ_MESSAGES = 1000
_LAST_TIME_MS = 2**63 - 1
_SAMPLE_MESSAGES = 100
# A transaction's worth of messages may be on its way; the batch itself bounds it.
_MAX_PENDING_MESSAGES = 1_000_000

# A new connection, and the truth from cursors and markers, may mend these.
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
# For so long a broker may be away before the query, or a task, fails.
PATIENCE_S: Final = 120.0
PAUSE_S: Final = 0.5

# Of fewer topics each is asked about when the one before has answered: a thread costs more than it
# saves.
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
        """Another one once the broker may have been started anew."""
        return id(self), self.client.connections_made()

    def close(self) -> None:
        with contextlib.suppress(PulsarError):
            self.client.close()

    @cached_property
    def asks_about_many(self) -> bool:
        """Whether the broker answers for many topics at once, and lists all their partitions."""
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
        """The last entry that can be delivered; entry -1 if there is none. Without `create` a topic
        that does not exist is not made: raises TopicNotFound."""
        if topic not in self._readers:
            self._readers[topic] = self.client.create_reader(
                topic, MessageId.latest, receiver_queue_size=1, create_topic=create
            )
        return position_of(self._readers[topic].get_last_message_id())

    def log_end(self, topic: str) -> Position:
        """Where the log of a topic ends, whether that can be delivered or not."""
        with self.client.subscribe(
            topic,
            f"log-end-{uuid.uuid4()}",
            subscription_mode=SubscriptionMode.NonDurable,
            initial_position=InitialPosition.Latest,
            receiver_queue_size=1,
        ) as consumer:
            return position_of(consumer.get_mark_delete_position())

    def forget(self, topic: str) -> None:
        """It is gone, and what was open there is of no use, should it come again."""
        with contextlib.suppress(PulsarError):
            if (reader := self._readers.pop(topic, None)) is not None:
                reader.close()
        for name in [each for each in self._consumers if each.topic == topic]:
            with contextlib.suppress(PulsarError):
                self.release(name)

    def release(self, name: CursorName) -> None:
        """Leaves the subscription to others, until something is asked of it again."""
        if (consumer := self._consumers.pop(name, None)) is not None:
            consumer.close()

    def delete(self, name: CursorName) -> None:
        """The subscription; one that is not there is made for that."""
        self._consumer(name, InitialPosition.Latest).unsubscribe()
        del self._consumers[name]

    def backlog(self, name: CursorName) -> int:
        """Entries that the subscription has not acknowledged."""
        return self._consumer(name, InitialPosition.Earliest).get_backlog()

    @contextlib.contextmanager
    def receiving(self, name: CursorName) -> Iterator[Consumer]:
        """A consumer that is handed messages: this session's only one on the subscription."""
        self.release(name)
        with self.client.subscribe(
            name.topic, name.subscription, consumer_type=ConsumerType.Failover
        ) as consumer:
            yield consumer

    def cursors(self, progress: Progress) -> dict[CursorName, Position]:
        """Each cursor, as far as messages go.

        A cursor passes over entries that are no messages (markers, aborted ones), so one that
        stands behind the span's beginning may still have all of the span's messages before it.
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
        """Moves the cursor in `txn`. Raises TransactionConflict if another holds or passed it."""
        consumer = self._consumer(name, InitialPosition.Earliest)
        consumer.acknowledge_cumulative(message_id_at(name.topic, position), txn=txn)

    def let_go(self, name: CursorName, position: Position) -> None:
        """Moves the cursor plainly, forward only; a crash may take the last second back. Creates
        the subscription if it is missing."""
        consumer = self._consumer(name, InitialPosition.Earliest)
        if position.entry_id >= 0:
            consumer.acknowledge_cumulative(message_id_at(name.topic, position))

    def _consumer(
        self, name: CursorName, initial_position: InitialPosition, create: bool = False
    ) -> Consumer:
        """Without `create` it does not make a topic anew either that is deleted under it."""
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
        """Without `create` a topic that does not exist is not made: raises TopicNotFound, as far as
        the broker tells; else `last_position` does."""
        names = self.client.get_topic_partitions(topic, create)
        return [str(TopicName.parse(name)) for name in names]

    def producer(
        self, topic: str, schema: TopicSchema | None = None, chunks: bool = False
    ) -> Producer:
        """The broker names it, anew for each session: no name outlives a session's sequence ids,
        so deduplication never takes a rerun's messages for the aborted ones. `chunks`: a message
        that is too large for an entry goes in several."""
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
        """Where the first message behind `position` is that can be delivered."""
        reader = self.reader(topic, position)
        try:
            return _first_of(reader)
        finally:
            reader.close()

    def message_from(self, topic: str, position: Position) -> tuple[Position, int] | None:
        """Where the first message from `position` on stands, and when it was published, in ms."""
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
        """Where the messages end that were published before a time, in ms since 1970."""
        reader = self.reader(topic, Position(-1, -1))
        try:
            reader.seek(min(time_ms, _LAST_TIME_MS))
            if (first := _first_of(reader)) is None:
                return self.last_position(topic)
            return first._replace(entry_id=first.entry_id - 1)
        finally:
            reader.close()

    def entries_behind(self, topic: str, position: Position) -> int:
        """How many there are, markers and aborted messages among them."""
        if position.entry_id >= 0:  # A broker counts from the entry on that a reader begins at.
            position = position._replace(entry_id=position.entry_id + 1)
        reader = self.reader(topic, position)
        try:
            return reader.get_backlog()
        finally:
            reader.close()

    def sample(self, topic: str, after: Position) -> Sample | None:
        """What the entries behind `after` are like; None if there are none."""
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
        """One message as an entry of its own; returns where it stands."""
        return position_of(self.producer(topic).send(data, txn=txn))

    def read_to_end(self, topic: str, after: Position) -> Iterator[tuple[Position, bytes]]:
        """What stands behind `after` and can be delivered now."""
        reader = self.reader(topic, after)
        try:
            while messages := _some_of(reader, _READ_MESSAGES):
                for message in messages:
                    yield position_of(message.message_id()), message.data()
        finally:
            reader.close()

    def reader(self, topic: str, after: Position, **options: Any) -> Reader:
        """What is encrypted is handed out as it is: it must not be passed over in silence."""
        return self.client.create_reader(
            topic,
            message_id_at(topic, after),
            crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
            **options,
        )


def each_of(items: Sequence[Item], ask: Callable[[Item], Result]) -> list[Result]:
    """The answers in order; of many items several are asked at a time."""
    if len(items) < _FEW:
        return [ask(item) for item in items]
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(ask, items))


def _first_of(reader: Reader) -> Position | None:
    some = _some_of(reader, 1)
    return position_of(some[0].message_id()) if some else None


def _some_of(reader: Reader, most: int) -> list[Message]:
    """The next messages; empty if there are none. Whether a topic's last entries are whole messages
    or chunks of a lost one, a reader knows when they have come. Raises Timeout."""
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
