"""A cheap connection: requests through protobuf, floods counted by frame sizes.

The official Python client uses ten times the broker's CPU per message, so a benchmark with it would
measure the client. Here frames are prebuilt and answers are not parsed.
"""

import socket
import ssl
import struct

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame

Type = pb.BaseCommand
RECEIVE_BYTES = 1 << 20
PROTOCOL_VERSION = 21
_TOTAL = struct.Struct(">I")
_SIZES = struct.Struct(">II")
# [total u32][command size u32][0x08 tag of `type`][type]
_TYPE_OFFSET = 9
_HEAD_BYTES = 10


class Refused(Exception):
    """The broker answered a request with an error."""


class RawConnection:
    """A socket after CONNECT; blocking until `flood.drive` takes it over."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._received = b""
        self._request_id = 0
        connect = pb.CommandConnect(client_version="bench", protocol_version=PROTOCOL_VERSION)
        self.send(pb.BaseCommand(type=Type.CONNECT, connect=connect))
        self.wait_for(Type.CONNECTED)

    def send(self, command: pb.BaseCommand) -> None:
        self.socket.sendall(encode_frame(command))

    def next_request_id(self) -> int:
        self._request_id += 1
        return self._request_id

    def wait_for(self, *kinds: int) -> pb.BaseCommand:
        """The next command of one of these kinds; others are dropped. Raises Refused."""
        while True:
            command, _ = self.receive()
            if command.type in kinds:
                return command
            if command.type == Type.ERROR:
                raise Refused(command.error.message)

    def receive(self) -> tuple[pb.BaseCommand, bytes]:
        """The next command, and the entry after it."""
        total = _TOTAL.unpack(self._take(4))[0]
        frame = self._take(total)
        end = 4 + _TOTAL.unpack_from(frame)[0]
        command = pb.BaseCommand.FromString(frame[4:end])
        if command.type == Type.PING:
            self.send(pb.BaseCommand(type=Type.PONG, pong=pb.CommandPong()))
        return command, frame[end:]

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            chunk = self.socket.recv(RECEIVE_BYTES)
            if not chunk:
                raise ConnectionError("The broker closed the connection")
            self._received += chunk
        taken, self._received = self._received[:size], self._received[size:]
        return taken

    def create_producer(self, topic: str, producer_id: int = 1, in_txn: bool = False) -> None:
        producer = pb.CommandProducer(
            topic=topic,
            producer_id=producer_id,
            request_id=self.next_request_id(),
            txn_enabled=in_txn,
        )
        self.send(pb.BaseCommand(type=Type.PRODUCER, producer=producer))
        self.wait_for(Type.PRODUCER_SUCCESS)

    def subscribe(self, topic: str, name: str, kind: int = pb.CommandSubscribe.Exclusive) -> None:
        """Subscribe as consumer 1, from the earliest message."""
        subscribe = pb.CommandSubscribe(
            topic=topic,
            subscription=name,
            subType=kind,  # type: ignore[arg-type]
            consumer_id=1,
            request_id=self.next_request_id(),
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        self.send(pb.BaseCommand(type=Type.SUBSCRIBE, subscribe=subscribe))
        self.wait_for(Type.SUCCESS)

    def allow(self, messages: int) -> None:
        flow = pb.CommandFlow(consumer_id=1, messagePermits=messages)
        self.send(pb.BaseCommand(type=Type.FLOW, flow=flow))

    def close(self) -> None:
        self.socket.close()


class FrameCounter:
    """Counts the frames of one kind in a stream; drops the others.

    A frame is counted when its last byte has arrived. Slices with a stride recognise runs of frames
    of equal size, which costs a few nanoseconds per frame.
    """

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._rest = b""
        self._skip = 0
        self._counts_after_skip = False

    def feed(self, chunk: bytes) -> int:
        """The number of frames of the kind that this chunk completes."""
        counted = 0
        if self._skip:
            if len(chunk) < self._skip:
                self._skip -= len(chunk)
                return 0
            counted = int(self._counts_after_skip)
            chunk, self._skip = chunk[self._skip :], 0
        data = self._rest + chunk if self._rest else chunk
        self._rest = b""
        position = 0
        while len(data) - position >= _HEAD_BYTES:
            size = 4 + _TOTAL.unpack_from(data, position)[0]
            if len(data) - position < size:
                self._skip = size - (len(data) - position)
                self._counts_after_skip = data[position + _TYPE_OFFSET] == self._kind
                return counted
            run = run_length(data, position, size)
            kinds = data[position + _TYPE_OFFSET : position + run * size : size]
            counted += kinds.count(self._kind)
            position += run * size
        self._rest = data[position:]
        return counted


def run_length(data: bytes, position: int, size: int) -> int:
    """The number of consecutive whole frames of `size` bytes from `position` on (at least 1)."""
    run = (len(data) - position) // size
    for offset in (3, 2, 1):
        column = data[position + offset : position + run * size : size]
        run = min(run, len(column) - len(column.lstrip(column[:1])))
    return run


def whole_commands(data: bytes) -> tuple[list[pb.BaseCommand], bytes]:
    """The commands whose frames are complete, and the bytes after them."""
    commands = []
    position = 0
    while len(data) - position >= 8:
        total, size = _SIZES.unpack_from(data, position)
        if len(data) - position < 4 + total:
            break
        commands.append(pb.BaseCommand.FromString(data[position + 8 : position + 8 + size]))
        position += 4 + total
    return commands, data[position:]
