"""Where the messages of a batch begin.

A batch's payload is [size u32][SingleMessageMetadata][data] for each message, so only each message
tells where the next one begins. Messages of equal sizes lie at even distances, and one comparison
of all heads finds such a run. Where sizes change too often, this module steps from message to
message, without an object for each.
"""

import struct
from typing import Final

import numpy as np

from pybroker.spark.columns.fields import Data, Ints, NotParsed

_U32: Final = struct.Struct(">I")
_PAYLOAD_SIZE: Final = 0x18
# Fields that may precede the payload's size: properties and the key.
_BEFORE: Final = (0x0A, 0x12)
_WORTH_A_VECTOR: Final = 24
_FIRST_PATIENCE: Final = 64
_MAX_PATIENCE: Final = 4096


def message_starts(blob: bytes, data: Data, start: int, end: int, count: int) -> Ints:
    """The offset of each message's size field, and the end of the last. `data` is `blob`, padded.

    Raises NotParsed.
    """
    found: list[Ints] = []
    at, left, patience = start, count, _FIRST_PATIENCE
    try:
        while left:
            stride, head = _measure(blob, at, end)
            run = _run_length(data, at, end, stride, head, left)
            found.append(at + stride * np.arange(run, dtype=np.int64))
            at += stride * run
            left -= run
            if run < _WORTH_A_VECTOR and left:
                some, at = _followed(blob, at, end, min(left, patience))
                found.append(some)
                left -= len(some)
                patience = min(2 * patience, _MAX_PATIENCE)
    except (IndexError, struct.error) as error:
        raise NotParsed("a batch ends within a message") from error
    found.append(np.array([at], np.int64))
    return np.concatenate(found)


def _run_length(
    data: Data, at: int, end: int, stride: int, head: tuple[int, ...], most: int
) -> int:
    """How many messages from `at` on have the same sizes, and so the same stride, as the first."""
    count = min(most, (end - at) // stride)
    if count < _WORTH_A_VECTOR:
        return 1
    rows = data[at : at + count * stride].reshape(count, stride)
    same = np.ones(count, np.bool_)
    for column in head:
        same &= rows[:, column] == rows[0, column]
    return count if same.all() else int(np.argmin(same))


def _measure(blob: bytes, at: int, end: int) -> tuple[int, tuple[int, ...]]:
    """The message's size including its head, and which of its bytes encode that size."""
    meta = at + 4
    place = meta
    told = [0, 1, 2, 3]
    while blob[place] in _BEFORE:
        size, behind = _varint(blob, place + 1)
        told += range(place - at, behind - at)
        place = behind + size
    if blob[place] != _PAYLOAD_SIZE:
        raise NotParsed("a message of a batch does not state its size")
    size, behind = _varint(blob, place + 1)
    told += range(place - at, behind - at)
    content = meta + _U32.unpack_from(blob, at)[0]
    if not behind <= content <= content + size <= end:
        raise NotParsed("a message does not fit its batch")
    return content + size - at, tuple(told)


def _followed(blob: bytes, at: int, end: int, count: int) -> tuple[Ints, int]:
    """Steps over `count` messages one by one; also returns where the next one begins."""
    starts = []
    unpack = _U32.unpack_from
    for _ in range(count):
        starts.append(at)
        place = at + 4
        behind_metadata = place + unpack(blob, at)[0]
        while (tag := blob[place]) != _PAYLOAD_SIZE:
            if tag not in _BEFORE:
                raise NotParsed("a message of a batch does not state its size")
            size = blob[place + 1]
            if size < 0x80:
                place += 2 + size
            else:
                size, place = _varint(blob, place + 1)
                place += size
        size = blob[place + 1]
        if size >= 0x80:
            low, high = size, blob[place + 2]
            size = low & 0x7F | high << 7 if high < 0x80 else _varint(blob, place + 1)[0]
        at = behind_metadata + size
        if not behind_metadata <= at <= end:
            raise NotParsed("a message does not fit its batch")
    return np.array(starts, np.int64), at


def _varint(blob: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = blob[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise NotParsed("a varint has more than ten bytes")
