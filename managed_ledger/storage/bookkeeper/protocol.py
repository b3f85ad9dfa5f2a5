"""BookKeeper's binary protocol, version 2: requests, responses, and the frames of the stream.

A frame is a u32 size and that many bytes. A request begins with the u32 `2 << 24 | operation << 16
| flags`. A response begins with the same u32 without flags, followed by a u32 code, the ledger and
the entry. Responses carry no request id: operation, ledger and entry identify the request (see
`connection.py`).

Source: org.apache.bookkeeper.proto.BookieProtocol.
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from managed_ledger.storage.bookkeeper.errors import BookieFailed

VERSION: Final = 2
LAST_CONFIRMED: Final = -1  # as the entry of a READ: the last entry that the bookie has
MASTER_KEY_BYTES: Final = 20
MAX_BATCH_BYTES: Final = 5 * 1024 * 1024  # of a batch read
# The largest response. An entry stays readable though maxMessageSize was larger when it was stored:
# this only recognises a peer that is not a bookie.
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
_FENCE: Final = 1
RECOVERY_ADD: Final = 2

_SIZE: Final = Struct(">I")
_ADD_HEAD: Final = Struct(">II20s")
_READ: Final = Struct(">IIqq")
_BATCH_READ: Final = Struct(">IIqqqiq")
_RESPONSE: Final = Struct(">IIqq")  # after the size
_SIZE_AND_RESPONSE: Final = Struct(">IIIqq")
_BATCH_HEAD_BYTES: Final = _RESPONSE.size + 8  # and the request's id


class Operation(IntEnum):
    ADD = 1
    READ = 2
    BATCH_READ = 7


class Code(IntEnum):
    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_LEDGER_STATE = 107
    TOO_LARGE = -1  # this client's own: the bookie does not take requests of that size


ABSENT: Final = frozenset({Code.NO_LEDGER, Code.NO_ENTRY})


class Response(NamedTuple):
    operation: int
    code: int
    ledger_id: int
    entry_id: int
    body: bytes


def head(operation: Operation, flags: int = 0) -> int:
    return VERSION << 24 | operation << 16 | flags


def add_request(master_key: bytes, body: bytes, is_recovery: bool = False) -> bytes:
    """`body` comes from `entry_body.pack`. A recovery add passes the fence of its ledger, so only
    recovery may send it.
    """
    first = head(Operation.ADD, RECOVERY_ADD if is_recovery else 0)
    return add_prefix(master_key, len(body), first) + body


def add_prefix(master_key: bytes, body_bytes: int, first: int = head(Operation.ADD)) -> bytes:
    return _ADD_HEAD.pack(4 + MASTER_KEY_BYTES + body_bytes, first, master_key)


def read_request(
    ledger_id: int, entry_id: int, fence_with: bytes | None = None, size_bytes: int = 0
) -> bytes:
    """`fence_with`, a master key, fences the ledger on that bookie before the read. Without it, the
    request is padded to `size_bytes`: bookies ignore what follows the entry's number.
    """
    if fence_with is None:
        padding = bytes(max(0, size_bytes - _READ.size))
        size = _READ.size - 4 + len(padding)
        return _READ.pack(size, head(Operation.READ), ledger_id, entry_id) + padding
    size = _READ.size - 4 + MASTER_KEY_BYTES
    return _READ.pack(size, head(Operation.READ, _FENCE), ledger_id, entry_id) + fence_with


def batch_read_request(ledger_id: int, first_entry_id: int, count: int, size_bytes: int) -> bytes:
    first = head(Operation.BATCH_READ)
    size = _BATCH_READ.size - 4
    return _BATCH_READ.pack(size, first, ledger_id, first_entry_id, 0, count, size_bytes)


def batch_bodies(response: Response) -> list[bytes]:
    """The entries of a BATCH_READ response. Raises BookieFailed if it ends within an entry."""
    bodies = []
    body, at = response.body, _BATCH_HEAD_BYTES - _RESPONSE.size
    while at < len(body):
        end = at + 4 + int.from_bytes(body[at : at + 4], "big")
        if end > len(body) or at + 4 > len(body):
            raise BookieFailed(f"a batch of ledger {response.ledger_id} ends within an entry")
        bodies.append(body[at + 4 : end])
        at = end
    return bodies


class Responses:
    """Splits the received bytes into responses."""

    __slots__ = ("_max_frame_bytes", "_rest")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._rest = bytearray()
        self._max_frame_bytes = max_frame_bytes

    def receive(self, chunk: bytes) -> Iterator[Response]:
        """The responses that `chunk` completes. Raises BookieFailed if the peer uses another
        protocol; the connection is then unusable.
        """
        data: bytes | bytearray = chunk
        if self._rest:
            self._rest += chunk
            if len(self._rest) < 4:
                return
            (size,) = _SIZE.unpack_from(self._rest)
            self._check(size)
            if len(self._rest) < 4 + size:
                return
            data, self._rest = self._rest, bytearray()
        at, end = 0, len(data)
        unpack, least = _RESPONSE.unpack_from, _RESPONSE.size
        # A fast path for answers to adds: small, of equal size, one for each entry and bookie.
        alike = memoryview(data)[: end - end % _SIZE_AND_RESPONSE.size]
        for size, first, code, ledger_id, entry_id in _SIZE_AND_RESPONSE.iter_unpack(alike):
            if size != least:
                break
            yield tuple.__new__(Response, (first >> 16 & 0xFF, code, ledger_id, entry_id, b""))
            at += 4 + least
        while end - at >= 4:
            (size,) = _SIZE.unpack_from(data, at)
            self._check(size)
            if end - at < 4 + size:
                break
            first, code, ledger_id, entry_id = unpack(data, at + 4)
            body = bytes(data[at + 4 + least : at + 4 + size])
            yield Response(first >> 16 & 0xFF, code, ledger_id, entry_id, body)
            at += 4 + size
        self._rest += data[at:]

    def _check(self, size: int) -> None:
        if not _RESPONSE.size <= size <= self._max_frame_bytes:
            raise BookieFailed(
                f"a response of {size} bytes, not {_RESPONSE.size} to {self._max_frame_bytes}: the "
                "peer is not a bookie, or maxMessageSize was much larger when the entry was stored"
            )
