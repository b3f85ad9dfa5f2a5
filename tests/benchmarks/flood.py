"""Floods: prebuilt SENDs, permits and acknowledgements, pumped through sockets by one selector."""

import selectors
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from raw_connection import RECEIVE_BYTES, FrameCounter, RawConnection, Type

from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import varint
from pybroker.wire.frames import encode_frame
from pybroker.wire.message_metadata import build_entry

CHUNK_BYTES = 256 * 1024
STALLED_AFTER_S = 20.0
# Sequence ids of three bytes each, so that all frames of a flood have one size.
_FIRST_SEQUENCE_ID = 1 << 14


def build_batch(messages: int, payload_bytes: int, txn_id: TxnId | None = None) -> bytes:
    """An entry of `messages` messages; with 1 the message is not batched."""
    payload = bytes(index % 251 for index in range(payload_bytes))
    metadata = pb.MessageMetadata(producer_name="bench", sequence_id=0, publish_time=1)
    if txn_id is not None:
        # As the Java client and pybroker.client do; the Go client names it only in the SEND.
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn_id
    if messages == 1:
        return build_entry(metadata, payload)
    metadata.num_messages_in_batch = messages
    single = pb.SingleMessageMetadata(payload_size=payload_bytes).SerializeToString()
    return build_entry(metadata, (len(single).to_bytes(4, "big") + single + payload) * messages)


def send_frames(entry: bytes, messages: int, count: int, txn_id: TxnId | None = None) -> bytes:
    """`count` SENDs of producer 1, all of the same size."""
    send = pb.CommandSend(producer_id=1, sequence_id=0)
    if messages > 1:
        send.num_messages = messages
    if txn_id is not None:
        send.txnid_most_bits, send.txnid_least_bits = txn_id
    frames = []
    for sequence_id in range(_FIRST_SEQUENCE_ID, _FIRST_SEQUENCE_ID + count):
        send.sequence_id = sequence_id
        frames.append(encode_frame(pb.BaseCommand(type=Type.SEND, send=send), entry))
    return b"".join(frames)


class HasSocket(Protocol):
    socket: socket.socket


class Pump(Protocol):
    """One connection of a flood. `blocked` requests a `push` when the socket is writable."""

    connection: HasSocket
    done: bool
    blocked: bool

    def start(self) -> None: ...
    def received(self, chunk: bytes) -> None: ...
    def push(self) -> None: ...


class Counter(Protocol):
    def feed(self, chunk: bytes) -> int:
        """The number of receipts that this chunk completes."""
        ...


class Publisher:
    """Sends `frames` in a cycle until `entries` have receipts, with `window` entries in flight."""

    def __init__(
        self,
        connection: HasSocket,
        frames: bytes,
        frame_bytes: int,
        entries: int,
        window: int,
        receipts: Counter | None = None,
    ) -> None:
        self.connection = connection
        self.done = False
        self.blocked = False
        self._frames = memoryview(frames)
        self._frame_bytes = frame_bytes
        self._entries = entries
        self._window = window
        self._sent_bytes = 0
        self._acknowledged = 0
        self._receipts = receipts or FrameCounter(Type.SEND_RECEIPT)

    def start(self) -> None:
        self.push()

    def received(self, chunk: bytes) -> None:
        self._acknowledged += self._receipts.feed(chunk)
        self.done = self._acknowledged >= self._entries
        self.push()

    def push(self) -> None:
        allowed = min(self._entries, self._acknowledged + self._window) * self._frame_bytes
        while self._sent_bytes < allowed:
            start = self._sent_bytes % len(self._frames)
            size = min(allowed - self._sent_bytes, CHUNK_BYTES)
            try:
                self._sent_bytes += self.connection.socket.send(self._frames[start : start + size])
            except BlockingIOError:
                self.blocked = True
                return
        self.blocked = False


class Acks(Protocol):
    def after(self, received: int) -> bytes:
        """The bytes to send after this many received messages."""
        ...


class Consumer:
    """Receives `entries` MESSAGEs, and sends the acknowledgements of `acks`."""

    def __init__(self, connection: RawConnection, entries: int, permits: int, acks: Acks) -> None:
        self.connection = connection
        self.done = False
        self.blocked = False
        self.count = 0
        self._entries = entries
        self._permits = permits
        self._acks = acks
        self._messages = FrameCounter(Type.MESSAGE)
        self._outgoing = b""

    def start(self) -> None:
        flow = pb.CommandFlow(consumer_id=1, messagePermits=self._permits)
        self._outgoing += encode_frame(pb.BaseCommand(type=Type.FLOW, flow=flow))
        self.push()

    def received(self, chunk: bytes) -> None:
        self.count += self._messages.feed(chunk)
        self._outgoing += self._acks.after(self.count)
        self.done = self.count >= self._entries
        self.push()

    def push(self) -> None:
        self.blocked = False
        while self._outgoing:
            try:
                sent = self.connection.socket.send(self._outgoing)
            except BlockingIOError:
                self.blocked = True
                return
            self._outgoing = self._outgoing[sent:]


def drive(pumps: Sequence[Pump]) -> float:
    """Run all pumps until each is done; returns the seconds."""
    with selectors.EpollSelector() as selector:
        for pump in pumps:
            pump.connection.socket.setblocking(False)
            selector.register(pump.connection.socket, selectors.EVENT_READ, pump)
        started = time.perf_counter()
        for pump in pumps:
            pump.start()
            _choose_events(selector, pump)
        waiting = len(pumps)
        while waiting:
            ready = selector.select(STALLED_AFTER_S)
            if not ready:
                raise TimeoutError(f"No answer for {STALLED_AFTER_S} s with {waiting} pumps busy")
            for key, events in ready:
                waiting -= _step(selector, key.data, events)
        seconds = time.perf_counter() - started
        for pump in pumps:
            pump.connection.socket.setblocking(True)
        return seconds


def _step(selector: selectors.BaseSelector, pump: Pump, events: int) -> int:
    """Let a pump work; 1 if that finished it."""
    was_blocked, was_done = pump.blocked, pump.done
    if events & selectors.EVENT_READ:
        chunk = pump.connection.socket.recv(RECEIVE_BYTES)
        if not chunk:
            raise ConnectionError("The broker closed the connection")
        pump.received(chunk)
    elif events & selectors.EVENT_WRITE:
        pump.push()
    if pump.blocked != was_blocked:
        _choose_events(selector, pump)
    return int(pump.done and not was_done)


def _choose_events(selector: selectors.BaseSelector, pump: Pump) -> None:
    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if pump.blocked else 0)
    selector.modify(pump.connection.socket, events, pump)


@dataclass(slots=True)
class NoAcks:
    def after(self, received: int) -> bytes:
        return b""


@dataclass(slots=True)
class AcksByStep:
    """Prebuilt ACKs: `frames[i]` is sent after (i + 1) * step received messages."""

    frames: list[bytes]
    step: int
    _sent: int = 0

    def after(self, received: int) -> bytes:
        first, self._sent = self._sent, received // self.step
        return b"".join(self.frames[first : self._sent])


def cumulative_acks(ledger_id: int, first_entry_id: int, count: int, step: int) -> AcksByStep:
    ends = range(first_entry_id + step - 1, first_entry_id + count, step)
    return AcksByStep([ack_frame(pb.CommandAck.Cumulative, ledger_id, [end]) for end in ends], step)


def listed_acks(
    ledger_id: int, first_entry_id: int, count: int, step: int, every: int = 1
) -> AcksByStep:
    """ACKs that each list `step` message ids, or only every `every`-th of them. With step 1 each
    message has its own ACK.
    """
    starts = range(first_entry_id, first_entry_id + count, step)
    listed = [range(start, start + step, every) for start in starts]
    return AcksByStep(
        [ack_frame(pb.CommandAck.Individual, ledger_id, entry_ids) for entry_ids in listed], step
    )


def ack_frame(kind: int, ledger_id: int, entry_ids: Iterable[int]) -> bytes:
    """Encoded by hand: protobuf takes ten times as long."""
    prefix = b"\x08" + varint.encode(ledger_id) + b"\x10"
    ids = [prefix + varint.encode(entry_id) for entry_id in entry_ids]
    listed = b"".join(b"\x1a" + varint.encode(len(message_id)) + message_id for message_id in ids)
    ack = b"\x08\x01\x10" + varint.encode(kind) + listed
    command = b"\x08\x0a\x52" + varint.encode(len(ack)) + ack
    return (4 + len(command)).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command
