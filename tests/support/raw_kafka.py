"""A client of Kafka's protocol that sends what a test says, byte by byte if need be."""

import itertools
import socket
from collections.abc import Mapping
from typing import Any, Final, Protocol

from pybroker.kafka.codec.messages import Header, decode_response, encode_request

TIMEOUT_S: Final = 30.0
CLIENT_ID: Final = "raw"


class Asks(Protocol):
    """A connection to one broker."""

    def ask(self, key: int, version: int, body: Mapping[str, Any]) -> dict[str, Any]: ...


class RawKafka:
    """Decodes responses in the version of the request, in the order of the requests."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._numbers = itertools.count(1)
        self._sent: list[tuple[int, int, int]] = []  # key, version and correlation id

    def __enter__(self) -> "RawKafka":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, key: int, version: int, body: Mapping[str, Any]) -> None:
        header = Header(key, version, next(self._numbers), CLIENT_ID)
        self._sent.append((key, version, header.correlation_id))
        self.send_frame(encode_request(header, body))

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def receive(self) -> dict[str, Any]:
        key, version, correlation_id = self._sent.pop(0)
        answered, body = decode_response(key, version, self.receive_frame())
        assert answered == correlation_id
        return body

    def ask(self, key: int, version: int, body: Mapping[str, Any]) -> dict[str, Any]:
        self.send(key, version, body)
        return self.receive()

    def receive_frame(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            some = self.socket.recv(size - len(data))
            if not some:
                raise EOFError("the broker has closed the connection")
            data += some
        return data

    def is_closed(self) -> bool:
        """Whether the broker closes the connection without another byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
