"""Frames: [total size u32][command size u32][command][entry], big-endian.

The total counts everything after itself. SEND and MESSAGE carry an *entry* after the command: see
message_metadata.py. Broker and client share this decoder: `receive` takes a chunk as read from the
socket and returns every complete command.

The broker's hot path is here: consecutive SENDs of one producer become one `SendRun`, parsed by a
regular expression instead of protobuf. A chunk may be a view of the socket's read buffer. Small
frames are parsed from one copy of the chunk; the entry of a large frame is copied once, on its own.
"""

import re
import struct
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from managed_ledger.checksum import crc32c
from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import varint

# Room in a frame beyond a message of maximum size: for command, metadata, properties.
FRAME_OVERHEAD_BYTES: Final = 10 * 1024
MAX_COMMAND_BYTES: Final = 1024 * 1024
_SMALL_PIECE: Final = 4096
_LARGE_FRAME: Final = 16 * 1024  # above this, copying an entry costs more than a few calls
_TOTAL: Final = struct.Struct(">I")
SIZES: Final = struct.Struct(">II")
_CHECKSUM: Final = struct.Struct(">HI")
CHECKSUM_MAGIC: Final = 0x0E01
BROKER_METADATA_MAGIC: Final = 0x0E02

# BaseCommand{type: SEND, send: {producer_id, sequence_id, num_messages?, txn?, highest?}} as every
# official client encodes it, with fields in order. Any other encoding goes through protobuf.
_VARINT: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_SEND: Final = re.compile(
    rb"\x08\x06\x32[\x00-\x7f](\x08V)(\x10V)(?:\x18(V))?(\x20V\x28V)?(?:\x30(V))?".replace(
        b"V", _VARINT
    ),
    re.DOTALL,
)

_PREFIX: Final = re.compile(rb"\x08V\x10(V)".replace(b"V", _VARINT), re.DOTALL)
_TXN: Final = re.compile(rb"\x20(V)\x28(V)".replace(b"V", _VARINT), re.DOTALL)

# producer_id, sequence_id and the transaction with their tags; of the other fields only the values.
# An absent field is None.
_SendGroups = tuple[Any, ...]


class ProtocolError(Exception):
    """The peer broke the framing; the connection is unusable from now on."""


@dataclass(slots=True)
class SendRun:
    """Consecutive SENDs of one producer within one transaction (or none), by column."""

    producer_id: int
    txn_id: TxnId | None
    chunked: bool = False  # a chunk of a message that is too large for one entry
    # Producer id and sequence id as received: a receipt begins with the same bytes.
    prefixes: list[bytes] = field(default_factory=list)
    message_counts: list[int] = field(default_factory=list)
    # b"" or the field highest_sequence_id as a receipt carries it.
    highest: list[bytes] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)

    def part(self, start: int, end: int) -> "SendRun":
        """The messages from index `start` up to but not including `end`."""
        span = slice(start, end)
        return SendRun(
            self.producer_id,
            self.txn_id,
            self.chunked,
            self.prefixes[span],
            self.message_counts[span],
            self.highest[span],
            self.entries[span],
        )

    def sequence_ids(self) -> list[int]:
        """Decoded only when needed: for deduplication and errors."""
        return [varint.decode(_sequence_of(prefix)) for prefix in self.prefixes]

    def highest_sequence_ids(self) -> list[int]:
        """The highest sequence id of each batch as stated by the producer; the SEND's own if none
        was stated.
        """
        return [
            varint.decode(highest[1:]) if highest else lowest
            for highest, lowest in zip(self.highest, self.sequence_ids(), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class BadChecksum:
    """A SEND whose entry does not match its CRC32C; the connection itself is fine. Unless the SEND
    states its highest sequence id, its messages are counted up.
    """

    producer_id: int
    sequence_id: int
    highest_sequence_id: int


@dataclass(slots=True)
class CommandFrame:
    """A command and, for MESSAGE, the entry after it (b"" for all others)."""

    command: pb.BaseCommand
    entry: bytes
    size_bytes: int  # of the encoded command


Event = SendRun | BadChecksum | CommandFrame


class _TurnIsOver(Exception):
    """The limit of events per turn is reached, and there are more."""


class FrameDecoder:
    """Bytes in, events out; remembers the incomplete frame at the end of a chunk."""

    def __init__(self, max_message_bytes: int, events_a_turn: int = sys.maxsize) -> None:
        """`receive` returns up to `events_a_turn` events; a run of SENDs is one event. It also
        stops after `command_bytes_a_turn` of other commands, because a long command is expensive.
        """
        self.has_more = False  # more events are ready: receive(b"") returns them
        self.events_a_turn = events_a_turn
        self.command_bytes_a_turn = sys.maxsize
        self._command_bytes = 0  # of this turn
        self.allow(max_message_bytes)
        self._parts: list[bytes | bytearray] = []
        self.held_bytes = 0  # of an incomplete frame: at most one frame's size plus one chunk
        self._wanted = 4
        self._run: SendRun | None = None
        self._run_key: tuple[bytes, bytes | None] | None = None

    def allow(self, max_message_bytes: int) -> None:
        """Sets the maximum message size from now on."""
        self._max_frame_bytes = max_message_bytes + FRAME_OVERHEAD_BYTES

    @property
    def wanted_bytes(self) -> int:
        """The size of the partly received frame, as far as known; 0 if there is none."""
        return self._wanted if self.held_bytes else 0

    def receive(self, data: bytes | memoryview) -> list[Event]:
        """Returns the events that are complete. After a ProtocolError the decoder is unusable.

        The caller may overwrite a view as soon as this returns.
        """
        events: list[Event] = []
        self._run_key = None
        self._command_bytes = 0
        if self._parts:
            if self.held_bytes + len(data) < self._wanted:
                self._hold(bytes(data))
                self.held_bytes += len(data)
                return events
            data = self._with_held(data, events)
        self.held_bytes = 0
        self.has_more = False
        consumed = self._parse(data, events)
        if consumed < len(data):
            self._parts.append(bytes(data[consumed:]))
            self.held_bytes = len(data) - consumed
        return events

    def _with_held(self, data: bytes | memoryview, events: list[Event]) -> bytes | memoryview:
        """The bytes to parse, now that the held frame is complete."""
        parts, self._parts = self._parts, []
        if self._wanted >= _LARGE_FRAME:
            missing = self._wanted - self.held_bytes
            if self._add_large_send(parts, memoryview(data)[:missing], events):
                return memoryview(data)[missing:]
        return b"".join((*parts, data))

    def _add_large_send(
        self, parts: list[bytes | bytearray], rest: memoryview, events: list[Event]
    ) -> bool:
        """Adds the frame held in `parts` if it is a plain SEND with its command in the first part.

        Returns whether it did.
        """
        head = memoryview(parts[0])
        command_end = 8 + SIZES.unpack_from(head)[1] if len(head) >= 8 else len(head) + 1
        send = _SEND.fullmatch(head, 8, command_end) if command_end <= len(head) else None
        if send is None or head[11] != command_end - 12:
            return False
        entry = b"".join((head[command_end:], *parts[1:], rest))
        self._add_send(send.groups(), entry, memoryview(entry), 0, len(entry), events)
        return True

    def _hold(self, data: bytes) -> None:
        """Joins small pieces: as separate objects they would take many times their size."""
        if len(data) >= _SMALL_PIECE:
            self._parts.append(data)
        elif isinstance(last := self._parts[-1], bytearray):
            last += data
        else:
            self._parts.append(bytearray(data))

    def _parse(self, data: bytes | memoryview, events: list[Event]) -> int:
        position, end = 0, len(data)
        view = memoryview(data)
        if end < 4 or _TOTAL.unpack_from(view)[0] < _LARGE_FRAME:
            data = bytes(data)  # slices of bytes are cheaper
        sizes, match_send, add_send = SIZES.unpack_from, _SEND.fullmatch, self._add_send
        while end - position >= 8:
            total, command_size = sizes(data, position)
            command_start = position + 8
            command_end = command_start + command_size
            frame_end = position + 4 + total
            if command_end > frame_end or total > self._max_frame_bytes:
                raise self._impossible(total, command_size)
            if frame_end > end:
                self._wanted = frame_end - position
                return position
            send = match_send(data, command_start, command_end)
            try:
                # The fourth byte, after the type and the tag, is the length of the SEND's body: it
                # must be right.
                if send is not None and data[command_start + 3] == command_size - 4:
                    add_send(send.groups(), data, view, command_end, frame_end, events)
                    position = frame_end
                else:
                    position = self._add_command(
                        data, command_start, command_end, frame_end, view, events
                    )
            except _TurnIsOver:
                self.has_more = True
                self._wanted = 0
                return position
        if end - position >= 4:
            self._check_total(_TOTAL.unpack_from(data, position)[0])
        self._wanted = 8 if end - position >= 4 else 4
        return position

    def _check_total(self, total: int) -> None:
        """Refuses a frame by its first four bytes instead of waiting for the rest."""
        if not 4 <= total <= self._max_frame_bytes:
            raise self._impossible(total, 0)

    def _impossible(self, total: int, command_size: int) -> ProtocolError:
        if total > self._max_frame_bytes:
            return ProtocolError(
                f"A frame of {total} bytes is larger than the {self._max_frame_bytes} allowed"
            )
        return ProtocolError(
            f"A command of {command_size} bytes does not fit its frame of {total} bytes"
        )

    def _add_send(
        self,
        groups: _SendGroups,
        data: bytes | memoryview,
        view: memoryview,
        entry_start: int,
        entry_end: int,
        events: list[Event],
    ) -> None:
        producer, sequence, count, txn, highest = groups
        if not _checksum_matches(data, view, entry_start, entry_end):
            self._begin_event(events)
            lowest = varint.decode(sequence[1:])
            last = lowest - 1 + (1 if count is None else _message_count(count))
            if highest is not None:
                last = max(lowest, varint.decode(highest))
            events.append(BadChecksum(_producer_id(producer), lowest, last))
            return
        key = (producer, txn)
        if key != self._run_key:
            self._begin_event(events)
            self._run_key = key
            txn_id = None if txn is None else _txn_id(txn)
            self._run = SendRun(_producer_id(producer), txn_id, False, [], [], [], [])
            events.append(self._run)
        run = self._run
        assert run is not None
        run.prefixes.append(producer + sequence)
        run.message_counts.append(1 if count is None else _message_count(count))
        run.highest.append(b"" if highest is None else b"\x20" + highest)
        entry = data[entry_start:entry_end]
        run.entries.append(entry if isinstance(entry, bytes) else bytes(entry))

    def _add_command(
        self,
        data: bytes | memoryview,
        start: int,
        end: int,
        frame_end: int,
        view: memoryview,
        events: list[Event],
    ) -> int:
        """Parses this frame and perhaps some after it; returns where the next one begins."""
        self._begin_event(events)
        if end - start > MAX_COMMAND_BYTES:
            raise ProtocolError(f"A command of {end - start} bytes is too large")
        try:
            command = pb.BaseCommand.FromString(bytes(data[start:end]))
        except DecodeError as error:
            raise ProtocolError(f"A command of {end - start} bytes does not parse") from error
        if command.type == pb.BaseCommand.SEND:
            if not command.HasField("send"):
                raise ProtocolError("A SEND frame has no message")
            self._add_send(_send_groups(command.send), data, view, end, frame_end, events)
            self._end_chunk(command.send)
        else:
            events.append(CommandFrame(command, bytes(data[end:frame_end]), end - start))
            self._command_bytes += end - start
        return frame_end

    def _begin_event(self, events: list[Event]) -> None:
        self._run_key = None
        is_full = len(events) >= self.events_a_turn
        if is_full or self._command_bytes >= self.command_bytes_a_turn:
            raise _TurnIsOver

    def _end_chunk(self, send: pb.CommandSend) -> None:
        """A chunk of a large message is a run of its own."""
        if send.is_chunk and self._run is not None and self._run_key is not None:
            self._run.chunked = True
            self._run_key = None


def _sequence_of(prefix: bytes) -> bytes:
    """The sequence id in a prefix, even if the producer id has superfluous varint bytes."""
    match = _PREFIX.fullmatch(prefix)
    assert match is not None, prefix
    return match[1]


def _send_groups(send: pb.CommandSend) -> _SendGroups:
    """The groups of the regular expression, for a SEND that only protobuf can parse."""

    def optional(name: str) -> bytes | None:
        return varint.encode(getattr(send, name)) if send.HasField(name) else None

    txn = None
    if send.HasField("txnid_least_bits") or send.HasField("txnid_most_bits"):
        least, most = varint.encode(send.txnid_least_bits), varint.encode(send.txnid_most_bits)
        txn = b"\x20" + least + b"\x28" + most
    return (
        b"\x08" + varint.encode(send.producer_id),
        b"\x10" + varint.encode(send.sequence_id),
        optional("num_messages"),
        txn,
        optional("highest_sequence_id"),
    )


@lru_cache(maxsize=1024)
def _producer_id(field: bytes) -> int:
    return varint.decode(field[1:])


def _txn_id(fields: bytes) -> TxnId:
    match = _TXN.fullmatch(fields)
    assert match is not None, fields
    return TxnId(varint.decode(match[2]), varint.decode(match[1]))


def _message_count(encoded: bytes) -> int:
    count = varint.decode(encoded)
    if not 1 <= count <= 1_000_000:
        raise ProtocolError(f"num_messages {count} of a SEND is not between 1 and 1,000,000")
    return count


def _checksum_matches(data: bytes | memoryview, view: memoryview, start: int, end: int) -> bool:
    """True also for an entry without a checksum; False for a wrong or truncated checksum, and for
    an entry that begins with broker entry metadata, which only the broker may write.
    """
    if end - start < 10:
        return False
    magic, checksum = _CHECKSUM.unpack_from(data, start)
    if magic == CHECKSUM_MAGIC:
        return bool(crc32c(view[start + 6 : end]) == checksum)
    return bool(magic != BROKER_METADATA_MAGIC)


CommandBody = Message
# The number of a command's field in BaseCommand is also its type.
FIELD_NAMES: Final = {
    field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields if field.message_type
}
_NUMBERS: Final = {
    field.message_type.name: field.number
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type
}
# What precedes the body's size: the command's type, and the tag of the body.
_HEADS: Final = {
    name: b"\x08" + varint.encode(number) + varint.encode(number << 3 | 2)
    for name, number in _NUMBERS.items()
}


def field_number(body: type[CommandBody]) -> int:
    """The type of the command with a body of this class."""
    return _NUMBERS[body.__name__]


def encode_command(body: CommandBody, entry: bytes = b"") -> bytes:
    """The frame of the command with this body, as protobuf would encode the BaseCommand."""
    head, encoded = _HEADS[type(body).__name__], body.SerializeToString()
    head += varint.encode(len(encoded))
    size = len(head) + len(encoded)
    return SIZES.pack(4 + size + len(entry), size) + head + encoded + entry


def encode_frame(command: pb.BaseCommand, entry: bytes = b"") -> bytes:
    """One frame, ready for the socket."""
    encoded = command.SerializeToString()
    return SIZES.pack(4 + len(encoded) + len(entry), len(encoded)) + encoded + entry
