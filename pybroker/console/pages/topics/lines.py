"""Writes messages into a file of limited size: as lines of JSON, or as values after their lengths.

The size of a message in the file is known before its first byte is written, so a file ends with a
whole message. A large value is encoded slice by slice, twice if that is what its size depends on:
as text, a byte may become six.
"""

import base64
import json
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pybroker.base.runtime import Pace
from pybroker.console.pages.topics.entries import Message

_PIECE_BYTES: Final = 64 * 1024
_SLICE_BYTES: Final = 48 * 1024  # divisible by three, for base64
_SLICES_A_TURN: Final = 4
_MESSAGES_A_TURN: Final = 50

Encode = Callable[[bytes], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class _Written:
    """A message in the file: the parts around its value, and how the value is encoded."""

    head: bytes
    size_bytes: int
    data: bytes = b""
    encode: Encode | None = None  # None: the head is all
    end: bytes = b""


class Lines:
    def __init__(self, as_json: bool, most_bytes: int) -> None:
        self._written = self._line if as_json else self._value
        self._most_bytes = self._left_bytes = most_bytes
        self.is_full = False

    async def of(self, messages: Iterable[Message]) -> AsyncIterator[bytes]:
        """The messages, in pieces. Ends early, and is full, before one that does not fit."""
        pace, pieces, size = Pace(_MESSAGES_A_TURN), list[bytes](), 0
        for message in messages:
            written = await self._written(message)
            if written.size_bytes > self._left_bytes:
                self.is_full = True
                break
            self._left_bytes -= written.size_bytes
            async for piece in _pieces(written):
                pieces.append(piece)
                size += len(piece)
                if size > _PIECE_BYTES:
                    yield b"".join(pieces)
                    pieces, size = [], 0
            await pace.step()
        yield b"".join(pieces)

    async def _line(self, message: Message) -> _Written:
        said, data = _said(message), message.data
        if data is None:
            return _whole(_json({**said, "value": None}))
        if len(data) <= _SLICE_BYTES:
            return _whole(_json({**said, **_small(data)}))
        head, end = _json(said)[:-2], b'"}\n'
        size = await _text_bytes(data)
        if size is not None and size <= self._most_bytes:
            return _around(head + b', "value": "', data, _as_text, size, end)
        size = 4 * -(-len(data) // 3)
        return _around(head + b', "valueBase64": "', data, _as_base64, size, end)

    async def _value(self, message: Message) -> _Written:
        """A value after its length in four bytes; nothing if no consumer would receive it."""
        data = message.data
        if data is None or message.uncommitted or message.aborted or message.marker:
            return _whole(b"")
        return _around(len(data).to_bytes(4), data, _slices, len(data), b"")


async def _pieces(written: _Written) -> AsyncIterator[bytes]:
    yield written.head
    if written.encode is not None:
        pace = Pace(_SLICES_A_TURN)
        for piece in written.encode(written.data):
            yield piece
            await pace.step()
        yield written.end


def _whole(head: bytes) -> _Written:
    return _Written(head, len(head))


def _around(head: bytes, data: bytes, encode: Encode, size_bytes: int, end: bytes) -> _Written:
    return _Written(head, len(head) + size_bytes + len(end), data, encode, end)


def _said(message: Message) -> dict[str, Any]:
    """The line without the value."""
    found: dict[str, Any] = {
        "messageId": message.place,
        "publishTime": message.published_ms,
        "eventTime": message.event_ms,
        "key": message.key,
        "properties": message.properties,
        "producer": message.producer,
        "sequenceId": message.sequence_id,
        "schemaVersion": message.schema_version,
        "transaction": message.transaction or None,
    }
    flags = ("encrypted", "uncommitted", "aborted", "marker")
    found |= {flag: True for flag in flags if getattr(message, flag)}
    found |= {"omitted": message.omitted} if message.omitted else {}
    return found | ({"chunk": message.chunk} if message.chunk else {})


def _small(data: bytes) -> dict[str, str]:
    try:
        return {"value": data.decode()}
    except UnicodeDecodeError:
        return {"valueBase64": base64.b64encode(data).decode()}


def _json(line: dict[str, Any]) -> bytes:
    return json.dumps(line).encode() + b"\n"


async def _text_bytes(data: bytes) -> int | None:
    """The size of the data as text in JSON; None if it is not UTF-8."""
    pace, size = Pace(_SLICES_A_TURN), 0
    try:
        for piece in _as_text(data):
            size += len(piece)
            await pace.step()
    except UnicodeDecodeError:
        return None
    return size


def _as_text(data: bytes) -> Iterator[bytes]:
    """Raises UnicodeDecodeError unless `data` is UTF-8."""
    decoder = getincrementaldecoder("utf-8")()
    for part in _slices(data):
        yield json.dumps(decoder.decode(part))[1:-1].encode()
    decoder.decode(b"", final=True)


def _as_base64(data: bytes) -> Iterator[bytes]:
    return map(base64.b64encode, _slices(data))


def _slices(data: bytes) -> Iterator[bytes]:
    return (data[at : at + _SLICE_BYTES] for at in range(0, len(data), _SLICE_BYTES))
