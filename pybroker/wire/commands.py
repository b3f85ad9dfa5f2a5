"""Encodes the broker's commands: templates for per-message commands, protobuf for the others.

A template is a frame whose variable numbers are padded varints (varint.py). Its length and both
size fields therefore depend only on what stays the same within a run.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pybroker.base.errors import NotAllowed, PulsarError
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import varint
from pybroker.wire.frames import SendRun, encode_command
from pybroker.wire.varint import ENTRY_HIGH, ENTRY_LOW, ENTRY_WIDTH

Type = pb.BaseCommand
MAX_PARTS: Final = 1000  # in one repeated field of a command: properties, subscriptions
_SIZES: Final = struct.Struct(">II")
# The command's type, and the tag of its body.
_TOPICS_HEAD: Final = b"".join(
    (
        b"\x08" + varint.encode(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE),
        varint.encode(Type.GETTOPICSOFNAMESPACERESPONSE_FIELD_NUMBER << 3 | 2),
    )
)
_SCALABLE_UPDATE_HEAD: Final = b"".join(
    (
        b"\x08" + varint.encode(Type.SCALABLE_TOPIC_UPDATE),
        varint.encode(Type.SCALABLETOPICUPDATE_FIELD_NUMBER << 3 | 2),
    )
)
_TOPIC_UPDATE_HEAD: Final = b"".join(
    (
        b"\x08" + varint.encode(Type.WATCH_TOPIC_UPDATE),
        varint.encode(Type.WATCHTOPICUPDATE_FIELD_NUMBER << 3 | 2),
    )
)


def has_invalid_text(message: Message) -> bool:
    """Whether any string in the message is not UTF-8: proto2 accepts it and returns bytes.

    Raises NotAllowed if a repeated field (properties, partitions, ...) has more than MAX_PARTS.
    """
    for name, is_repeated, is_string in _textual(message.DESCRIPTOR):
        value = getattr(message, name)  # empty if not set
        if is_repeated:
            if len(value) > MAX_PARTS:
                raise NotAllowed(f"{name} has {len(value)} parts: send at most {MAX_PARTS}")
            if bytes in map(type, value) if is_string else any(map(has_invalid_text, value)):
                return True
        elif type(value) is bytes if is_string else _has_invalid(message, name, value):
            return True
    return False


def _has_invalid(message: Message, name: str, inner: Message) -> bool:
    return message.HasField(name) and has_invalid_text(inner)


class _Textual(NamedTuple):
    """A field that contains text, possibly in a nested message."""

    name: str
    is_repeated: bool
    is_string: bool


@cache
def _textual(descriptor: Descriptor) -> tuple[_Textual, ...]:
    return tuple(
        _Textual(
            field.name,
            field.default_value == [],
            field.type == FieldDescriptor.TYPE_STRING,
        )
        for field in descriptor.fields
        if _holds_text(field, ())
    )


def _holds_text(field: FieldDescriptor, within: tuple[Descriptor, ...]) -> bool:
    if field.type != FieldDescriptor.TYPE_MESSAGE:
        return bool(field.type == FieldDescriptor.TYPE_STRING)
    inner = field.message_type
    assert inner is not None
    if inner in within:  # a recursive message type
        return False
    return any(_holds_text(each, (*within, inner)) for each in inner.fields)


# -- transactions: request_id, txnid_least_bits, txnid_most_bits are fields 1 to 3 of each response


def transaction_done(number: int, request_id: int, most: int, least: int) -> bytes:
    """A successful response; `number` is its type, and that of its field in BaseCommand."""
    # Encode both ids even if they are 0: the Go client dereferences them.
    body = b"\x08%b\x10%b\x18%b" % (varint.encode(request_id), _known(least), _known(most))
    return _done_head(number, len(body)) + body


_known: Final = lru_cache(maxsize=4096)(varint.encode)  # each transaction gets several responses


@lru_cache(maxsize=256)
def _done_head(number: int, body: int) -> bytes:
    start = b"\x08" + varint.encode(number) + varint.encode(number << 3 | 2)
    return _head(start + varint.encode(body), body)


# -- SEND_RECEIPT --------------------------------------------------------------------------------


def receipts(run: SendRun, ledger_id: int, first_entry_id: int) -> bytes:
    """The receipts of a whole run of consecutive entries, as one buffer."""
    message_id = _receipt_message_id(ledger_id)
    fixed = len(message_id) + ENTRY_WIDTH
    parts: list[bytes] = []
    add, head_of = parts.extend, _receipt_head
    entry_id = first_entry_id
    for prefix, highest in zip(run.prefixes, run.highest, strict=True):
        head = head_of(len(prefix) + len(highest) + fixed)
        add((head, prefix, message_id, ENTRY_LOW[entry_id & 127], ENTRY_HIGH[entry_id >> 7]))
        if highest:
            parts.append(highest)
        entry_id += 1
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _receipt_message_id(ledger_id: int) -> bytes:
    ledger = b"\x08" + varint.encode(ledger_id) + b"\x10"
    return b"\x1a" + varint.encode(len(ledger) + ENTRY_WIDTH) + ledger


@lru_cache(maxsize=256)
def _receipt_head(body: int) -> bytes:
    return _head(b"\x08\x07\x3a" + varint.encode(body), body)


def _head(command_start: bytes, body: int) -> bytes:
    size = len(command_start) + body
    return _SIZES.pack(4 + size, size) + command_start


def duplicate_receipt(producer_id: int, sequence_id: int, highest_sequence_id: int) -> bytes:
    """The receipt of a message that deduplication dropped: its id is (-1, -1)."""
    receipt = pb.CommandSendReceipt(
        producer_id=producer_id,
        sequence_id=sequence_id,
        highest_sequence_id=highest_sequence_id,
        message_id=pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1),
    )
    return encode_command(receipt)


def send_error(producer_id: int, sequence_id: int, error: PulsarError) -> bytes:
    failed = pb.CommandSendError(
        producer_id=producer_id,
        sequence_id=sequence_id,
        error=error.code,  # type: ignore[arg-type]
        message=str(error),
    )
    return encode_command(failed)


# -- MESSAGE -------------------------------------------------------------------------------------


class MessageFrames:
    """MESSAGE frames of one consumer. `partition` is -1 for a topic that is not a partition."""

    def __init__(self, consumer_id: int, partition: int) -> None:
        self._consumer_id = b"\x08" + varint.encode(consumer_id)
        self._consumer = self._consumer_id  # and the consumer's epoch, once known
        self._partition = b"" if partition < 0 else b"\x18" + varint.encode(partition)
        self._ledger_id = -1
        self._message_id = b""
        self._heads: dict[int, bytes] = {}

    def begin_epoch(self, consumer_epoch: int) -> None:
        """Frames carry the epoch from now on, so that the client can recognise messages sent before
        it requested redelivery of everything. Source: PIP-84.
        """
        self._consumer = self._consumer_id + b"\x28" + varint.encode(consumer_epoch)
        self._ledger_id = -1

    def encode(self, ledger_id: int, entry_ids: Sequence[int], entries: Sequence[bytes]) -> bytes:
        """Frames of first deliveries, as one buffer."""
        if ledger_id != self._ledger_id or len(self._heads) > 4096:
            self._begin_ledger(ledger_id)
        heads, partition = self._heads, self._partition
        parts: list[bytes] = []
        add = parts.extend
        for entry_id, entry in zip(entry_ids, entries, strict=True):
            head = heads.get(len(entry)) or self._new_head(len(entry))
            add((head, ENTRY_LOW[entry_id & 127], ENTRY_HIGH[entry_id >> 7], partition, entry))
        return b"".join(parts)

    def encode_again(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        redelivery_counts: Sequence[int] | None,
        unacked_indexes: Mapping[int, tuple[int, int]] | None,
    ) -> bytes:
        """Frames with redelivery counts, or of partly acknowledged batches."""
        if ledger_id != self._ledger_id:
            self._begin_ledger(ledger_id)
        parts: list[bytes] = []
        for index, (entry_id, entry) in enumerate(zip(entry_ids, entries, strict=True)):
            tail = b""
            if redelivery_counts is not None and redelivery_counts[index]:
                tail = b"\x18" + varint.encode(redelivery_counts[index])
            if unacked_indexes is not None and entry_id in unacked_indexes:
                words = ack_set_words(*unacked_indexes[entry_id])
                tail += b"".join(b"\x20" + varint.encode(word) for word in words)
            low, high = ENTRY_LOW[entry_id & 127], ENTRY_HIGH[entry_id >> 7]
            head = self._head_of(len(entry), len(tail))
            parts.extend((head, low, high, self._partition, tail, entry))
        return b"".join(parts)

    def _begin_ledger(self, ledger_id: int) -> None:
        self._ledger_id = ledger_id
        self._heads.clear()
        ledger = b"\x08" + varint.encode(ledger_id) + b"\x10"
        size = len(ledger) + ENTRY_WIDTH + len(self._partition)
        self._message_id = b"\x12" + varint.encode(size) + ledger

    def _new_head(self, entry_size: int) -> bytes:
        head = self._heads[entry_size] = self._head_of(entry_size, 0)
        return head

    def _head_of(self, entry_size: int, tail_size: int) -> bytes:
        fixed = self._consumer + self._message_id
        body = len(fixed) + ENTRY_WIDTH + len(self._partition) + tail_size
        command = b"\x08\x09\x4a" + varint.encode(body) + fixed
        size = len(command) + ENTRY_WIDTH + len(self._partition) + tail_size
        return _SIZES.pack(4 + size + entry_size, size) + command


def ack_set_words(unacked: int, batch_size: int) -> list[int]:
    """A bitset as sent on the wire: 64-bit words, lowest first; a set bit is still unacked."""
    count = max(1, (max(batch_size, unacked.bit_length()) + 63) // 64)
    return [unacked >> (64 * word) & 0xFFFF_FFFF_FFFF_FFFF for word in range(count)]


def ack_set_bits(words: Sequence[int], batch_size: int) -> int:
    """The bitset of an ack_set field, whose words are signed. Raises NotAllowed."""
    held = words[: (batch_size + 63) // 64]
    bits = int.from_bytes(struct.pack(f"<{len(held)}q", *held), "little")
    if bits >> batch_size or any(words[len(held) :]):
        raise NotAllowed(
            f"An ack_set of {len(words)} words refers to messages beyond the {batch_size} of its "
            "entry"
        )
    return bits


# -- GET_TOPICS_OF_NAMESPACE ---------------------------------------------------------------------


def encode_topics(
    topics: Sequence[str], topics_hash: str, changed: bool, filtered: bool = False
) -> bytes:
    """The answer without its request id: the same for every client."""
    return pb.CommandGetTopicsOfNamespaceResponse(
        topics=topics, filtered=filtered, topics_hash=topics_hash, changed=changed
    ).SerializePartialToString()


def topics_of_namespace(request_id: int, encoded: bytes) -> bytes:
    return _with_first_number(_TOPICS_HEAD, request_id, encoded)


def encode_topic_change(added: Sequence[str], removed: Sequence[str], topics_hash: str) -> bytes:
    """An update without its watcher id: the same for every watcher."""
    return pb.CommandWatchTopicUpdate(
        new_topics=added, deleted_topics=removed, topics_hash=topics_hash
    ).SerializePartialToString()


def topic_update(watcher_id: int, encoded: bytes) -> bytes:
    return _with_first_number(_TOPIC_UPDATE_HEAD, watcher_id, encoded)


def scalable_topic_update(session_id: int, encoded: bytes) -> bytes:
    """`encoded` is the update without its session id."""
    return _with_first_number(_SCALABLE_UPDATE_HEAD, session_id, encoded)


def _with_first_number(head: bytes, number: int, encoded: bytes) -> bytes:
    """A command whose body is `encoded`, with `number` as its first field."""
    first = b"\x08" + varint.encode(number)
    body_size = varint.encode(len(first) + len(encoded))
    command_size = len(head) + len(body_size) + len(first) + len(encoded)
    sizes = _SIZES.pack(4 + command_size, command_size)
    return b"".join((sizes, head, body_size, first, encoded))


# -- answers -------------------------------------------------------------------------------------


def success(request_id: int) -> bytes:
    return encode_command(pb.CommandSuccess(request_id=request_id))


def error(request_id: int, failure: PulsarError) -> bytes:
    answer = pb.CommandError(
        request_id=request_id,
        error=failure.code,  # type: ignore[arg-type]
        message=failure.on_the_wire,
    )
    return encode_command(answer)


# -- what the broker says unasked ----------------------------------------------------------------

_UNASKED: Final = 2**64 - 1  # the request id


def close_consumer(consumer_id: int) -> bytes:
    closing = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=_UNASKED)
    return encode_command(closing)


def close_producer(producer_id: int) -> bytes:
    closing = pb.CommandCloseProducer(producer_id=producer_id, request_id=_UNASKED)
    return encode_command(closing)


def active_consumer_change(consumer_id: int, is_active: bool) -> bytes:
    change = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active)
    return encode_command(change)


def reached_end_of_topic(consumer_id: int) -> bytes:
    end = pb.CommandReachedEndOfTopic(consumer_id=consumer_id)
    return encode_command(end)


PING: Final = encode_command(pb.CommandPing())
PONG: Final = encode_command(pb.CommandPong())
