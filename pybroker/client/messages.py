"""Messages and their ids, as the application sees them.

A `ReceivedEntry` holds the content of one MESSAGE command. Its messages share it and parse the rest
on demand, because most applications ask for the data and little else.
"""

from collections.abc import Callable
from functools import total_ordering
from typing import Any, ClassVar, Final, NamedTuple

from pybroker.base.names import TxnId
from pybroker.client.consuming.acks import Place
from pybroker.client.consuming.given import Given
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import transaction_of

_UINT64: Final = 2**64
_INT64_MAX: Final = 2**63 - 1

# Called once for each message published, with its id or the error.
Done = Callable[["MessageId | None", Exception | None], None]

# A message's position: ledger id, entry id, index in the batch (-1 outside of one).
OrderKey = tuple[int, int, int]

MAX_BATCH_MESSAGES: Final = 1_000_000  # an entry with more is refused


@total_ordering
class MessageId:
    """The position where a message is stored, and its sort order. Picklable; `serialize` uses the
    Java client's format.

    `batch_size` and `topic` are kept so that the id alone can be acknowledged, `first_chunk` (the
    entry in which a chunked message begins) so that a consumer can seek to it. `given` says in
    which pass of its consumer the message came, within this process.
    """

    __slots__ = (
        "_batch_index",
        "_batch_size",
        "_entry_id",
        "_first_chunk",
        "_given",
        "_ledger_id",
        "_partition",
        "_topic",
    )

    earliest: ClassVar["MessageId"]
    latest: ClassVar["MessageId"]

    def __init__(
        self,
        partition: int = -1,
        ledger_id: int = -1,
        entry_id: int = -1,
        batch_index: int = -1,
        *,
        batch_size: int = 0,
        topic: str = "",
        first_chunk: tuple[int, int] | None = None,
        given: Given | None = None,
    ) -> None:
        self._first_chunk = first_chunk
        self._given = given
        self._partition = partition
        self._ledger_id = ledger_id
        self._entry_id = entry_id
        self._batch_index = batch_index
        self._batch_size = batch_size
        self._topic = topic

    def ledger_id(self) -> int:
        return self._ledger_id

    def entry_id(self) -> int:
        return self._entry_id

    def batch_index(self) -> int:
        return self._batch_index

    def batch_size(self) -> int:
        return self._batch_size

    def partition(self) -> int:
        return self._partition

    def topic_name(self) -> str:
        """The partition or topic it came from; empty for a deserialized id."""
        return self._topic

    def names_message(self) -> bool:
        """Whether it can be acknowledged: earliest and latest cannot, nor what no batch has."""
        size = self._batch_size
        is_in_batch = size <= 1 or self._batch_index < size <= MAX_BATCH_MESSAGES
        return self._ledger_id >= 0 and self._entry_id >= 0 and is_in_batch

    def serialize(self) -> bytes:
        return self.to_wire().SerializeToString()

    @staticmethod
    def deserialize(message_id_bytes: bytes) -> "MessageId":
        return MessageId.from_wire(pb.MessageIdData.FromString(message_id_bytes))

    def to_wire(self) -> pb.MessageIdData:
        data = pb.MessageIdData(
            ledgerId=self._ledger_id % _UINT64, entryId=self._entry_id % _UINT64
        )
        if self._partition >= 0:
            data.partition = self._partition
        if self._batch_index >= 0:
            data.batch_index = self._batch_index
        if self._batch_size > 0:
            data.batch_size = self._batch_size
        if self._first_chunk is not None:
            first = data.first_chunk_message_id
            first.ledgerId, first.entryId = self._first_chunk
        return data

    @staticmethod
    def from_wire(data: pb.MessageIdData, topic: str = "", partition: int = -1) -> "MessageId":
        first = data.first_chunk_message_id
        chunked = data.HasField("first_chunk_message_id")
        return MessageId(
            data.partition if data.HasField("partition") else partition,
            _signed(data.ledgerId),
            _signed(data.entryId),
            data.batch_index,
            batch_size=data.batch_size,
            topic=topic,
            first_chunk=(first.ledgerId, first.entryId) if chunked else None,
        )

    def in_batch(self, batch_index: int, batch_size: int) -> "MessageId":
        """The id of one message of this entry's batch."""
        return MessageId(
            self._partition,
            self._ledger_id,
            self._entry_id,
            batch_index,
            batch_size=batch_size,
            topic=self._topic,
        )

    def from_chunk(self, first_chunk: tuple[int, int]) -> "MessageId":
        """The id of the chunked message whose last chunk this is."""
        return MessageId(
            self._partition,
            self._ledger_id,
            self._entry_id,
            topic=self._topic,
            first_chunk=first_chunk,
        )

    @property
    def first_chunk(self) -> tuple[int, int] | None:
        return self._first_chunk

    @property
    def given(self) -> Given | None:
        return self._given

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        state = {name: getattr(self, name) for name in MessageId.__slots__}
        return None, {**state, "_given": None}

    @property
    def order_key(self) -> OrderKey:
        return (self._ledger_id, self._entry_id, self._batch_index)

    @property
    def place(self) -> Place:
        return (self._ledger_id, self._entry_id, self._batch_index, self._batch_size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return self.order_key == other.order_key and self._partition == other._partition

    def __lt__(self, other: "MessageId") -> bool:
        return (*self.order_key, self._partition) < (*other.order_key, other._partition)

    def __hash__(self) -> int:
        return hash((self.order_key, self._partition))

    def __repr__(self) -> str:
        return f"({self._ledger_id},{self._entry_id},{self._partition},{self._batch_index})"


MessageId.earliest = MessageId()
MessageId.latest = MessageId(ledger_id=_INT64_MAX, entry_id=_INT64_MAX)


def _signed(value: int) -> int:
    return value - _UINT64 if value > _INT64_MAX else value


class Outgoing(NamedTuple):
    """One message to publish; a plain value, cheap to build."""

    content: bytes
    properties: dict[str, str] | None = None
    partition_key: str | None = None
    ordering_key: bytes | None = None
    sequence_id: int | None = None
    event_timestamp: int | None = None
    deliver_at_ms: int | None = None
    # A null value, as in a compaction tombstone; `content` is empty then.
    null_value: bool = False
    # The partition key is base64 of bytes that need not be text.
    partition_key_b64_encoded: bool = False
    # Do not replicate this message to other clusters.
    disable_replication: bool = False


class ReceivedEntry:
    """`receiver` is the TopicConsumer that received it, in its pass `given`.

    `first_chunk` is the entry in which a chunked message begins; it then ends in this entry.
    """

    __slots__ = (
        "_data",
        "_metadata",
        "batch_size",
        "entry_id",
        "first_chunk",
        "given",
        "ledger_id",
        "receiver",
        "redeliveries",
    )

    def __init__(
        self,
        ledger_id: int,
        entry_id: int,
        batch_size: int,
        redeliveries: int,
        metadata: pb.MessageMetadata | bytes,
        receiver: Any,
        given: Given,
        data: bytes = b"",
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.batch_size = batch_size
        self.redeliveries = redeliveries
        self._metadata = metadata
        self._data = data
        self.receiver = receiver
        self.given = given
        self.first_chunk: tuple[int, int] | None = None

    @property
    def metadata(self) -> pb.MessageMetadata:
        """Parsed on first use."""
        if isinstance(self._metadata, bytes):
            self._metadata = pb.MessageMetadata.FromString(self._metadata)
        return self._metadata

    @property
    def key(self) -> tuple[int, int]:
        return (self.ledger_id, self.entry_id)

    @property
    def topic(self) -> str:
        return str(self.receiver.topic)


class Message:
    """A received message; immutable."""

    __slots__ = ()
    entry: ReceivedEntry
    batch_index: int
    _data: bytes
    _single: pb.SingleMessageMetadata | None

    @property
    def _own(self) -> pb.SingleMessageMetadata | pb.MessageMetadata:
        """The metadata of this message alone."""
        return self.entry.metadata if self._single is None else self._single

    @property
    def order_key(self) -> OrderKey:
        return (self.entry.ledger_id, self.entry.entry_id, self.batch_index)

    @property
    def place(self) -> Place:
        entry = self.entry
        return (entry.ledger_id, entry.entry_id, self.batch_index, entry.batch_size)

    def data(self) -> bytes:
        return self._data

    def value(self) -> bytes:
        """The same as `data`: applying a schema is up to the application."""
        return self._data

    def message_id(self) -> MessageId:
        entry = self.entry
        return MessageId(
            entry.receiver.partition,
            entry.ledger_id,
            entry.entry_id,
            self.batch_index,
            batch_size=entry.batch_size,
            topic=entry.topic,
            first_chunk=entry.first_chunk,
            given=entry.given,
        )

    def properties(self) -> dict[str, str]:
        return {pair.key: pair.value for pair in self._own.properties}

    def partition_key(self) -> str:
        return self._own.partition_key

    def has_partition_key(self) -> bool:
        """Distinguishes an empty key from no key."""
        return self._own.HasField("partition_key")

    def ordering_key(self) -> bytes:
        return self._own.ordering_key

    def event_timestamp(self) -> int:
        """Milliseconds since 1970; 0 if the producer set none."""
        return self._own.event_time

    def publish_timestamp(self) -> int:
        """Milliseconds since 1970 by the producer's clock."""
        return self.entry.metadata.publish_time

    def has_null_value(self) -> bool:
        return self._own.null_value

    def copied(self, properties: dict[str, str]) -> Outgoing:
        """To be published elsewhere: its content, keys and event time, with these properties."""
        own, has_key = self._own, self.has_partition_key()
        return Outgoing(
            self.data(),
            properties,
            own.partition_key if has_key else None,
            own.ordering_key or None,
            event_timestamp=own.event_time or None,
            null_value=own.null_value,
            partition_key_b64_encoded=own.partition_key_b64_encoded,
        )

    def topic_name(self) -> str:
        """The partition's name if the topic has partitions."""
        return self.entry.topic

    def producer_name(self) -> str:
        return self.entry.metadata.producer_name

    def sequence_id(self) -> int:
        if self._single is not None and self._single.HasField("sequence_id"):
            return self._single.sequence_id
        return self.entry.metadata.sequence_id

    def redelivery_count(self) -> int:
        return self.entry.redeliveries

    def schema_version(self) -> bytes:
        return self.entry.metadata.schema_version

    def txn_id(self) -> TxnId | None:
        """The transaction that published it, if the producer's client recorded it."""
        return transaction_of(self.entry.metadata)

    def __repr__(self) -> str:
        return f"Message({self.message_id()} of {self.entry.topic}, {len(self._data)} bytes)"


class UnpackedMessage(Message):
    """A message extracted from its entry, for example from a batch."""

    __slots__ = ("_data", "_single", "batch_index", "entry")

    def __init__(
        self,
        entry: ReceivedEntry,
        batch_index: int,
        data: bytes,
        single: pb.SingleMessageMetadata | None,
    ) -> None:
        self.entry = entry
        self.batch_index = batch_index
        self._data = data
        self._single = single


class PlainMessage(ReceivedEntry, Message):
    """An entry that is a single message; a single object, to spare the garbage collector."""

    __slots__ = ()
    batch_index = -1
    _single = None

    @property
    def entry(self) -> ReceivedEntry:  # type: ignore[override]
        return self

    @property
    def place(self) -> Place:
        return (self.ledger_id, self.entry_id, -1, 0)
