"""A peer of the WebSocket API that sends frames as it likes."""

import os
import socket
import struct
from urllib.parse import urlsplit

from ws_programs import url_of

from pybroker.testing import RunningBroker

TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 0x1, 0x2, 0x8, 0x9, 0xA, 0x0
FIN = 0x80


class RawPeer:
    """A WebSocket without a library."""

    def __init__(self, broker: RunningBroker, path: str, machine: str = "127.0.0.1") -> None:
        url = urlsplit(url_of(broker, path))
        assert url.hostname is not None and url.port is not None
        self.socket = socket.create_connection(
            (url.hostname, url.port), timeout=30, source_address=(machine, 0)
        )
        self.socket.sendall(
            f"GET {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        self.input = self.socket.makefile("rb")
        assert b" 101 " in self.input.readline()
        while self.input.readline() != b"\r\n":
            pass

    def send(self, head: int, payload: bytes = b"", claimed: int | None = None) -> None:
        size = len(payload) if claimed is None else claimed
        mask = os.urandom(4)
        if size < 126:
            length = bytes([0x80 | size])
        elif size < 2**16:
            length = b"\xfe" + struct.pack("!H", size)
        else:
            length = b"\xff" + struct.pack("!Q", size)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
        self.socket.sendall(bytes([head]) + length + mask + masked)

    def frame(self) -> tuple[int, bytes]:
        head, length = self.input.read(2)
        if length == 126:
            (length,) = struct.unpack("!H", self.input.read(2))
        return head & 0x0F, self.input.read(length)

    def close_code(self) -> int:
        """Reads up to the end; the code that the broker gave."""
        while True:
            kind, payload = self.frame()
            if kind == CLOSE:
                return int.from_bytes(payload[:2], "big")

    def __enter__(self) -> "RawPeer":
        return self

    def __exit__(self, *_: object) -> None:
        self.input.close()
        self.socket.close()
