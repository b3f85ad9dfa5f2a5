"""A peer that writes any bytes and reads the answers."""

import socket
from types import TracebackType

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import CommandFrame, FrameDecoder, encode_frame

# Less than the broker's handshake timeout, so that its effect is not mistaken for a refusal.
ANSWER_WITHIN_S = 30.0
CONNECT = encode_frame(
    pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=pb.CommandConnect(client_version="peer"))
)


def frame(command: bytes, behind: bytes = b"") -> bytes:
    """A frame around command bytes that need not parse."""
    total = 4 + len(command) + len(behind)
    return total.to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + behind


class Peer:
    """One connection. `answer` waits at most `ANSWER_WITHIN_S`."""

    def __init__(self, service_url: str, handshake: bool = True) -> None:
        host, _, port = service_url.removeprefix("pulsar://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_WITHIN_S)
        self._decoder = FrameDecoder(5 * 1024 * 1024)
        if handshake:
            self.write(CONNECT)
            connected = self.answer()
            assert connected is not None and connected.HasField("connected")

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
        """Write; the broker may close the connection early, which `answer` then reports."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def answer(self) -> pb.BaseCommand | None:
        """The next command; None if the broker closed the connection. Raises TimeoutError."""
        while True:
            try:
                chunk = self._socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            for event in self._decoder.receive(chunk):
                assert isinstance(event, CommandFrame)
                return event.command

    def is_refused(self) -> bool:
        """Whether the answer is an error, a response with an error, or a closed connection."""
        answer = self.answer()
        if answer is None or answer.HasField("error") or answer.HasField("send_error"):
            return True
        (_, body), *_ = [found for found in answer.ListFields() if found[0].name != "type"]
        return any(descriptor.name == "error" for descriptor, _ in body.ListFields())
