"""The sequence ids of a batch whose producer did not state the highest one.

The official C++, Python and Go clients state only the first message's id, so the entry must show
the last one's. Ids that an application chose may have gaps, so the last message's own id counts. If
the entry cannot be examined, because it is encrypted, damaged or too large, its messages are
counted up from the first, as the client itself does to tell the application its last sequence id.

Decompressing takes long. So a loop's turn examines a limited amount; the rest waits for the next.
"""

import asyncio
from collections.abc import Generator
from typing import Final

from pybroker.wire.decompression import CannotDecompress, in_parts
from pybroker.wire.message_metadata import BadEntry, split_entry
from pybroker.wire.single_messages import single_messages

MAX_BYTES: Final = 16 * 1024 * 1024  # decompressed; a larger batch is not examined
MAX_MESSAGES: Final = 20_000  # the same
_BYTES_A_TURN: Final = 2 * 1024 * 1024
_MESSAGES_A_STEP: Final = 500
_MESSAGE_BYTES: Final = 1000  # whose decompression takes as long as parsing a message's metadata


class Examinations:
    """How much was decompressed in this turn of the loop, by all topics of a broker."""

    def __init__(
        self, max_entry_bytes: int = 5 * 1024 * 1024, bytes_a_turn: int = _BYTES_A_TURN
    ) -> None:
        self.max_entry_bytes = max_entry_bytes  # what clients can receive
        self._limit = self._left = bytes_a_turn

    @property
    def must_wait(self) -> bool:
        return self._left <= 0

    def spend(self, size_bytes: int) -> None:
        if self._left == self._limit:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._left -= max(1, size_bytes)

    def _begin_turn(self) -> None:
        self._left = self._limit


def highest_of_batch(entry: bytes, lowest: int, examinations: Examinations) -> int:
    """The highest sequence id of an entry that arrived as several messages without stating it."""
    steps = _examine(entry, lowest, not examinations.must_wait)
    while True:
        try:
            examinations.spend(next(steps))
        except StopIteration as found:
            return int(found.value)


async def highest_in_turns(entry: bytes, lowest: int) -> int:
    """Like `highest_of_batch`, with other work in between."""
    steps = _examine(entry, lowest)
    while True:
        try:
            next(steps)
        except StopIteration as found:
            return int(found.value)
        await asyncio.sleep(0)


def _examine(entry: bytes, lowest: int, unpack: bool = True) -> Generator[int, None, int]:
    """Yields the bytes of each step, returns the highest id. Unless `unpack`, it only counts."""
    try:
        metadata, start = split_entry(entry)
    except BadEntry:
        return lowest  # no client can read it
    if metadata.HasField("highest_sequence_id"):
        return max(lowest, metadata.highest_sequence_id)
    count = metadata.num_messages_in_batch
    counted = lowest + max(0, count - 1)
    if not unpack or metadata.encryption_keys or not 1 < count <= MAX_MESSAGES:
        return counted
    if max(len(entry), metadata.uncompressed_size) > MAX_BYTES:
        return counted
    parts: list[bytes] = []
    last = None
    try:
        for part in in_parts(metadata.compression, entry[start:], metadata.uncompressed_size):
            parts.append(part)
            yield len(part)
        for number, single in enumerate(single_messages(b"".join(parts), count), 1):
            last = single
            if number % _MESSAGES_A_STEP == 0:
                yield _MESSAGES_A_STEP * _MESSAGE_BYTES
    except (CannotDecompress, BadEntry):
        return counted
    if last is None or not last.HasField("sequence_id"):
        return counted
    return max(lowest, last.sequence_id)
