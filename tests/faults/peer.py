"""A peer that says whatever a test wants, well-formed or not, and hears what comes back."""

import socket
from types import TracebackType

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import CommandFrame, FrameDecoder, encode_frame

Type = pb.BaseCommand
ANSWER_WITHIN_S = 1.0
REQUEST_ID = 77


def frame(command: bytes, behind: bytes = b"") -> bytes:
    """A frame around command bytes that need not parse."""
    total = 4 + len(command) + len(behind)
    return total.to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + behind


class Peer:
    """One connection. `answer` waits at most a second, as long as a broker may take to react."""

    def __init__(self, service_url: str, handshake: bool = True) -> None:
        host, _, port = service_url.removeprefix("pulsar://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.settimeout(ANSWER_WITHIN_S)
        self._decoder = FrameDecoder(5 * 1024 * 1024)
        self._events: list[CommandFrame] = []
        if handshake:
            self.send(Type.CONNECT, connect=pb.CommandConnect(client_version="peer"))
            assert self.answer(Type.CONNECTED) is not None

    def __enter__(self) -> "Peer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def write(self, data: bytes) -> None:
        """The broker may close before it has read everything: that is for `answer` to see."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def send(self, kind: int, entry: bytes = b"", **body: object) -> None:
        self.write(encode_frame(pb.BaseCommand(type=kind, **body), entry))  # type: ignore[arg-type]

    def answer(self, *kinds: int) -> CommandFrame | None:
        """The next command (of these kinds, if any are given); None when the broker closed.

        Raises TimeoutError when it does neither.
        """
        while True:
            while self._events:
                event = self._events.pop(0)
                if not kinds or event.command.type in kinds:
                    return event
            try:
                chunk = self._socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            received = self._decoder.receive(chunk)
            self._events += [event for event in received if isinstance(event, CommandFrame)]

    def request(self, kind: int, **body: object) -> pb.BaseCommand | None:
        self.send(kind, **body)
        answer = self.answer()
        return answer.command if answer else None

    def create_producer(self, topic: str, producer_id: int = 1) -> pb.BaseCommand | None:
        command = pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=REQUEST_ID)
        return self.request(Type.PRODUCER, producer=command)

    def subscribe(self, topic: str, consumer_id: int = 1) -> pb.BaseCommand | None:
        command = pb.CommandSubscribe(
            topic=topic,
            subscription="s",
            subType=pb.CommandSubscribe.Shared,
            consumer_id=consumer_id,
            request_id=REQUEST_ID,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        return self.request(Type.SUBSCRIBE, subscribe=command)

    def publish(self, entry: bytes, sequence_id: int = 0) -> CommandFrame | None:
        """As producer 1; the receipt or the error."""
        send = pb.CommandSend(producer_id=1, sequence_id=sequence_id)
        self.send(Type.SEND, entry, send=send)
        return self.answer(Type.SEND_RECEIPT, Type.SEND_ERROR)


def is_error(command: pb.BaseCommand | None) -> bool:
    """An ERROR, SEND_ERROR or a response that carries one; a closed connection counts too."""
    if command is None or command.type in (Type.ERROR, Type.SEND_ERROR):
        return True
    (_, body), *_ = [f for f in command.ListFields() if f[0].name != "type"]
    return any(field.name in ("error", "error_code") for field, _ in body.ListFields())
