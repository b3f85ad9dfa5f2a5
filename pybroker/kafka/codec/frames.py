"""The frames of a connection: a size of four bytes, then a request. Without a socket.

A size is compared with its limit before anything is kept for it: first with the limit of all
requests, then, once the API key is there, with that of its kind. Source: Kafka's protocol guide.
"""

import struct
from collections.abc import Callable
from typing import Final

from pybroker.kafka.codec.messages import HEADER_BYTES, key_and_version
from pybroker.kafka.codec.primitives import Malformed

SIZE_BYTES: Final = 4
_SIZE: Final = struct.Struct(">i")
_BEGINNINGS: Final = {
    b"\x16\x03": "a TLS handshake on a port without TLS: set security.protocol to PLAINTEXT or "
    "SASL_PLAINTEXT, or connect to the port with TLS",
    b"GE": "an HTTP request: this port speaks Kafka's protocol",
    b"PO": "an HTTP request: this port speaks Kafka's protocol",
    b"HE": "an HTTP request: this port speaks Kafka's protocol",
    b"\x00\x00\x00\x00": "a frame without a request, or a client of Pulsar's protocol",
}


class FrameReader:
    def __init__(self, most_bytes: int, most_of: Callable[[int], int]) -> None:
        """`most_bytes`: the largest request of all; `most_of`: that of an API key."""
        self._most_bytes = most_bytes
        self._most_of = most_of
        self._held = bytearray()

    @property
    def wanted_bytes(self) -> int:
        """The size of the frame that is partly here; 0 if none is, or its size is not known."""
        return self._size() + SIZE_BYTES if len(self._held) >= SIZE_BYTES else 0

    @property
    def is_within_a_frame(self) -> bool:
        return bool(self._held)

    def receive(self, data: bytes) -> list[bytes]:
        """The requests that are complete now. Raises Malformed."""
        self._held += data
        found, at = [], 0
        while len(self._held) - at >= SIZE_BYTES:
            end = at + SIZE_BYTES + self._checked_size(at)
            if end > len(self._held):
                break
            found.append(bytes(memoryview(self._held)[at + SIZE_BYTES : end]))
            at = end
        if at:
            del self._held[:at]
        return found

    def _size(self, at: int = 0) -> int:
        size: int = _SIZE.unpack_from(self._held, at)[0]
        return size

    def _checked_size(self, at: int) -> int:
        size = self._size(at)
        if not 0 < size <= self._most_bytes:
            raise Malformed(self._what_it_is(at) or f"a request of {size} bytes")
        if size >= HEADER_BYTES and len(self._held) - at >= SIZE_BYTES + HEADER_BYTES:
            key = key_and_version(self._held, at + SIZE_BYTES)[0]
            if size > (most := self._most_of(key)):
                raise Malformed(
                    f"a request of API key {key} has {size} bytes; at most {most} are allowed"
                )
        return size

    def _what_it_is(self, at: int) -> str | None:
        begin = bytes(self._held[at : at + SIZE_BYTES])
        return next((what for first, what in _BEGINNINGS.items() if begin.startswith(first)), None)
