"""`spark.readStream.format("pulsar")`: a streaming source that hands Arrow batches to Spark.

Options: `service_url`; `topic` (its partitions are read as many tasks); `subscription`, whose
cursor says where a new query begins, so a pipeline that lost its checkpoint goes on where its last
committed batch ended; `max_entries_per_trigger` (an entry is a message or a producer's batch);
`starting_position` (`earliest` or `latest`) for a subscription that is not there yet.

The planner (one long-lived process per query) decides offsets; tasks read spans. Nothing here moves
the cursor: acknowledging belongs to the transaction that publishes a batch's results. Entries that
were acknowledged one by one before the query began are left out. They are read whole, so the
subscription must not have been used to acknowledge parts of producers' batches.

A span's end is always an entry that could be delivered when it was chosen, so a task knows that
it is done by reaching it, across ledgers, aborted messages and markers. One that cannot be reached
has been deleted, which is an error.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pybroker.client import (
    AlreadyClosed,
    ConnectError,
    CryptoError,
    InitialPosition,
    Message,
    NotAllowed,
    ServiceNotReady,
    Timeout,
)
from pybroker.names import TopicName
from pybroker.spark.acknowledged import acknowledged_behind
from pybroker.spark.offsets import CursorName, Position, SourceOffset, Span, Stretch
from pybroker.spark.replay import InputLost
from pybroker.spark.session import Session, connect, position_of

SCHEMA: Final = (
    "key string, value binary, topic string, message_id string, publish_time timestamp, "
    "event_time timestamp, properties map<string,string>"
)
_ARROW_SCHEMA: Final = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("message_id", pa.string()),
        ("publish_time", pa.timestamp("us", "UTC")),
        ("event_time", pa.timestamp("us", "UTC")),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)
_INITIAL: Final = {"earliest": InitialPosition.Earliest, "latest": InitialPosition.Latest}
_READ_MESSAGES: Final = 5000
_READ_TIMEOUT_MS: Final = 1000
_QUEUE_MESSAGES: Final = 10_000
_BROKER_AWAY: Final = (ConnectError, Timeout, AlreadyClosed, ServiceNotReady)
# For so long a broker may be away before the query, or a task, fails.
_PATIENCE_S: Final = 120.0
_PAUSE_S: Final = 0.5

Result = TypeVar("Result")


def register(spark: SparkSession) -> None:
    """Makes the format "pulsar" known to `spark.readStream`; before the `load` of each query.

    PySpark 4 lets all queries of one registration share a Java map that each changes as it starts.
    Two that start at once can break it, and every task then fails with OptionalDataException.
    """
    spark.dataSource.register(PulsarDataSource)


class PulsarDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pulsar"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> "PulsarStreamReader":
        return PulsarStreamReader(self.options)


class SpanPartition(InputPartition):
    """One task's work: a span of one partition."""

    def __init__(self, topic: str, span: Span, acknowledged: Sequence[Stretch] = ()) -> None:
        super().__init__((topic, span))
        self.topic = topic
        self.span = span
        # Not to be read, be it within the span or behind it.
        self.acknowledged = acknowledged


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._service_url = _required(options, "service_url")
        self._topic = str(TopicName.parse(_required(options, "topic")))
        self._subscription = _required(options, "subscription")
        self._max_entries = int(options.get("max_entries_per_trigger", "0"))
        self._initial = _initial_position(options.get("starting_position", "earliest"))
        self._session: Session | None = None
        # Under Trigger.AvailableNow: where each partition ended when the query began.
        self._targets: dict[str, Position] | None = None

    # --- in the planner ---------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._asking(self._at_cursors).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Entries go by the name of rows here: Spark knows no better word."""
        return ReadMaxRows(self._max_entries) if self._max_entries else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = SourceOffset.from_json(start)
        entries = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        following = self._asking(lambda session: self._following(session, before, entries))
        return following.to_json() if following.progress() else start

    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = self._asking(
            lambda session: {
                topic: session.last_position(self._cursor_name(topic))
                for topic in session.partitions(self._topic)
            }
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The end says where the batch began: that of the first batch is nowhere else.

        When Spark runs the first batch again it asks for the initial offset anew, and the cursor
        may have passed over the batch since.
        """
        if start == end:
            return []
        offset = SourceOffset.from_json(end)
        return [
            SpanPartition(topic, span, offset.acknowledged.get(topic, ()))
            for topic, span in offset.spans.items()
            if not span.is_empty
        ]

    def stop(self) -> None:
        if self._session is not None:
            self._session.close()

    def _at_cursors(self, session: Session) -> SourceOffset:
        names = [self._cursor_name(topic) for topic in session.partitions(self._topic)]
        cursors = {name: session.cursor(name, self._initial) for name in names}
        return SourceOffset(
            self._subscription,
            {name.topic: _nothing_behind(cursor) for name, cursor in cursors.items()},
            {
                name.topic: acknowledged_behind(session, name, cursor)
                for name, cursor in cursors.items()
            },
        )

    def _following(
        self, session: Session, before: SourceOffset, entries: int | None
    ) -> SourceOffset:
        topics = self._targets or session.partitions(self._topic)
        share = None if entries is None else max(1, entries // len(topics))
        spans = {topic: self._next_span(session, before, topic, share) for topic in topics}
        acknowledged = {
            topic: [stretch for stretch in stretches if stretch.last > spans[topic].after]
            for topic, stretches in before.acknowledged.items()
            if topic in spans
        }
        return SourceOffset(self._subscription, spans, acknowledged)

    def _next_span(
        self, session: Session, before: SourceOffset, topic: str, entries: int | None
    ) -> Span:
        name = self._cursor_name(topic)
        last = self._targets[topic] if self._targets else session.last_position(name)
        if topic in before.spans:
            after = before.spans[topic].to
        else:  # The topic has grown a partition.
            after = session.cursor(name, self._initial)
        if last <= after or last.entry_id < 0:
            return _nothing_behind(after)
        if entries is None:
            return Span(after, last)
        return Span(after, _bounded(session, topic, after, last, entries))

    def _cursor_name(self, topic: str) -> CursorName:
        return CursorName(topic, self._subscription)

    def _asking(self, question: Callable[[Session], Result]) -> Result:
        """The session's answer; asked again on a new connection while the broker is away."""
        give_up_at = time.monotonic() + _PATIENCE_S
        while True:
            try:
                if self._session is None:
                    self._session = Session(connect(self._service_url))
                return question(self._session)
            except _BROKER_AWAY:
                if self._session is not None:
                    self._session.close()
                self._session = None
                if time.monotonic() >= give_up_at:
                    raise
            time.sleep(_PAUSE_S)

    # --- in a task --------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpanPartition)
        return read_span(self._service_url, partition.topic, partition.span, partition.acknowledged)


def _required(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise NotAllowed(f'The source "pulsar" needs the option {name}')
    return value


def _initial_position(text: str) -> InitialPosition:
    if text not in _INITIAL:
        raise NotAllowed(f"starting_position is {text!r}; it may be 'earliest' or 'latest'")
    return _INITIAL[text]


def _nothing_behind(position: Position) -> Span:
    return Span(position, position)


def _bounded(
    session: Session, topic: str, after: Position, last: Position, entries: int
) -> Position:
    """The first entry at or behind `after` + `entries` that can be delivered.

    The place counted to may hold a marker, an aborted message or nothing (the ledger ended), so
    one message is read to find where the next one is.
    """
    wanted = Position(after.ledger_id, after.entry_id + entries)
    if wanted >= last:
        return last
    found = session.first_position_after(topic, wanted._replace(entry_id=wanted.entry_id - 1))
    return last if found is None else min(found, last)


# --- reading ------------------------------------------------------------------------------------


def read_span(
    service_url: str, topic: str, span: Span, acknowledged: Sequence[Stretch] = ()
) -> Iterator[pa.RecordBatch]:
    """The span's messages; after a lost connection, from the last whole entry handed out."""
    after = span.after
    give_up_at = time.monotonic() + _PATIENCE_S
    while after < span.to:
        session = None
        try:
            session = Session(connect(service_url))
            for messages in _entries(session, topic, Span(after, span.to)):
                yield _to_arrow(_without(acknowledged, messages))
                after = position_of(messages[-1].message_id())
                give_up_at = time.monotonic() + _PATIENCE_S
            return
        except _BROKER_AWAY:
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(_PAUSE_S)
        finally:
            if session is not None:
                session.close()


def _entries(session: Session, topic: str, span: Span) -> Iterator[list[Message]]:
    """Lists of messages, each list made of whole entries. Raises InputLost, CryptoError."""
    reader = session.reader(topic, span.after, receiver_queue_size=_QUEUE_MESSAGES)
    waiting: list[Message] = []
    silent_ms = 0
    while True:
        messages = reader.batch_read(_READ_MESSAGES, _READ_TIMEOUT_MS)
        silent_ms = 0 if messages else silent_ms + _READ_TIMEOUT_MS
        if not messages and not reader.has_message_available():
            raise _lost(topic, span)
        if silent_ms >= _PATIENCE_S * 1000:
            raise Timeout(f"{topic} holds messages up to {span.to}, but delivers none of them")
        waiting += messages
        whole = waiting[: _whole_entries(waiting)]
        del waiting[: len(whole)]
        if whole and position_of(whole[-1].message_id()) >= span.to:
            yield _readable(_up_to(whole, topic, span), topic)
            return
        if whole:
            yield _readable(whole, topic)


def _up_to(messages: Sequence[Message], topic: str, span: Span) -> list[Message]:
    """Those of the span. Raises InputLost."""
    within = [message for message in messages if position_of(message.message_id()) <= span.to]
    if not within or position_of(within[-1].message_id()) < span.to:
        raise _lost(topic, span)
    return within


def _readable(messages: list[Message], topic: str) -> list[Message]:
    """Raises CryptoError."""
    for message in messages:
        # What could not be decrypted comes as it is, as one message of no batch.
        if message.entry.batch_size == 0 and message.entry.metadata.encryption_keys:
            raise CryptoError(
                f"The message {_id_text(message)} of {topic} is encrypted, and the source has no "
                "key: read this topic with pybroker.client and a crypto_key_reader, or skip the "
                "message on the subscription and start from a new checkpoint"
            )
    return messages


def _lost(topic: str, span: Span) -> InputLost:
    return InputLost(
        f"Messages of {topic} behind {span.after} and up to {span.to} were deleted before the "
        "batch was read, by an expiry or by somebody, or are damaged. Start from a new checkpoint, "
        "which goes on at the cursor"
    )


def _whole_entries(messages: Sequence[Message]) -> int:
    """How many of the messages belong to entries that are complete."""
    count = len(messages)
    while count and not _ends_entry(messages[count - 1]):
        count -= 1
    return count


def _ends_entry(message: Message) -> bool:
    return message.batch_index + 1 >= message.entry.batch_size


def _without(acknowledged: Sequence[Stretch], messages: list[Message]) -> list[Message]:
    if not acknowledged:
        return messages
    return [each for each in messages if not _is_within(acknowledged, each)]


def _is_within(stretches: Sequence[Stretch], message: Message) -> bool:
    position = position_of(message.message_id())
    index = bisect_right(stretches, position, key=lambda stretch: stretch.first) - 1
    return index >= 0 and position <= stretches[index].last


def _to_arrow(messages: Sequence[Message]) -> pa.RecordBatch:
    columns: list[list[Any]] = [
        [_key(message) for message in messages],
        [_value(message) for message in messages],
        [message.topic_name() for message in messages],
        [_id_text(message) for message in messages],
        [message.publish_timestamp() * 1000 for message in messages],
        [message.event_timestamp() * 1000 or None for message in messages],
        [list(message.properties().items()) for message in messages],
    ]
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, _ARROW_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def _key(message: Message) -> str | None:
    return message.partition_key() or ("" if message.has_partition_key() else None)


def _value(message: Message) -> bytes | None:
    return message.data() or (None if message.has_null_value() else b"")


def _id_text(message: Message) -> str:
    return ":".join(map(str, message.order_key))
