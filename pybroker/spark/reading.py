"""A source's tasks: spans of a partition become Arrow batches.

A span's end is always an entry that could be delivered when it was chosen, so a task knows that
it is done by reaching it, across ledgers, aborted messages and markers. One that cannot be reached
has been deleted, which is an error.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from pybroker.client import CryptoError, Message, Timeout
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import Span, Stretch
from pybroker.spark.replay import InputLost
from pybroker.spark.session import (
    BROKER_AWAY,
    PATIENCE_S,
    PAUSE_S,
    Session,
    position_of,
)

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
_READ_MESSAGES: Final = 5000
_READ_TIMEOUT_MS: Final = 1000
_QUEUE_MESSAGES: Final = 10_000


def read_span(
    endpoint: Endpoint, topic: str, span: Span, acknowledged: Sequence[Stretch] = ()
) -> Iterator[pa.RecordBatch]:
    """The span's messages; after a lost connection, from the last whole entry handed out."""
    after = span.after
    give_up_at = time.monotonic() + PATIENCE_S
    while after < span.to:
        session = None
        try:
            session = Session(endpoint.connect())
            for messages in _entries(session, topic, Span(after, span.to)):
                yield _to_arrow(_without(acknowledged, messages))
                after = position_of(messages[-1].message_id())
                give_up_at = time.monotonic() + PATIENCE_S
            return
        except BROKER_AWAY:
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(PAUSE_S)
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
        if silent_ms >= PATIENCE_S * 1000:
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
