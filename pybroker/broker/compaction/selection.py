"""Which messages a compaction keeps: the last of each key, unless it deletes the key and is old.

Messages are numbered in the order of the log, so the result is one byte for each message; the keys
are dropped before anything is written. An entry that is kept or dropped as a whole counts once,
whatever number of messages its producer stated.
"""

import asyncio
import logging
from array import array
from collections.abc import Sequence
from typing import Final

from managed_ledger.position import EARLIEST, Position
from pybroker.base.runtime import Pace
from pybroker.broker.compaction.compacted_log import Kept
from pybroker.broker.compaction.keyed_messages import (
    OUT,
    Keyed,
    Part,
    Unreadable,
    look_at,
    readable_tombstone,
)

log = logging.getLogger(__name__)

_MESSAGES_A_TURN: Final = 2000
_SHARDS: Final = 256
_LEFT_OUT, _KEPT, _TOMBSTONE = range(3)  # what becomes of a message; the last is kept, too
_TO_DIGITS: Final = bytes((48, 49, 49)) + bytes(253)


class Selection:
    def __init__(self, retain_null_key: bool, drop_to: Position = EARLIEST) -> None:
        """Messages that delete a key are kept after the position `drop_to`."""
        self._retain_null_key = retain_null_key
        self._drop_to = drop_to
        self._marks = bytearray()  # by number: whether it is kept, see below
        self._counts = array("I")  # by entry: the number of its marks
        # By key: the number of the last message, inverted if it deletes the key, or the list of its
        # parts' numbers. In shards, because a large dict takes long to grow, and to free.
        self._latest: list[dict[bytes, int | list[int]]] = [{} for _ in range(_SHARDS)]
        self._parts: dict[tuple[str, str], list[int]] = {}  # of incomplete messages
        self._pace = Pace(_MESSAGES_A_TURN)

    @property
    def messages(self) -> int:
        """The number of messages that were distinguished."""
        return len(self._marks)

    async def see(self, entries: Sequence[Kept]) -> None:
        """Examine the next entries of the log."""
        for kept in entries:
            try:
                found = await look_at(kept.entry, kept.messages)
            except Unreadable as why:
                log.debug("%s is kept unchanged: %s", kept.position, why)
                self._marks[self._number(1)] = _KEPT
            else:
                if isinstance(found, Part):
                    self._see_part(self._number(1), found)
                else:
                    await self._see_batch(self._number(len(found)), found, kept)
            await self._pace.step(self._counts[-1])

    def _number(self, count: int) -> int:
        """Numbers an entry's `count` messages; returns the number of the first."""
        first = len(self._marks)
        self._marks += bytes(count)
        self._counts.append(count)
        return first

    async def _see_batch(self, first: int, found: list[Keyed], kept: Kept) -> None:
        bits, drop = kept.bits, kept.position <= self._drop_to
        for start in range(0, len(found), _MESSAGES_A_TURN):
            if start:
                await asyncio.sleep(0)
            stop = start + _MESSAGES_A_TURN
            left = None if bits is None else bits >> start
            self._see_messages(first + start, found[start:stop], left, drop)

    def _see_messages(self, first: int, found: list[Keyed], bits: int | None, drop: bool) -> None:
        """`drop`: whether to drop messages that delete a key."""
        for number, keyed in enumerate(found, first):
            if bits is not None and not bits >> (number - first) & 1:
                continue  # an earlier compaction has left it out
            key, deletes = keyed
            if key is None:
                self._marks[number] = self._retain_null_key and keyed is not OUT
            elif not deletes:
                self._of(key)[key] = number
            elif drop:
                self._of(key).pop(key, None)
            else:
                self._of(key)[key] = ~number

    def _of(self, key: bytes) -> "dict[bytes, int | list[int]]":
        return self._latest[hash(key) % _SHARDS]

    def _see_part(self, number: int, part: Part) -> None:
        if part.number == 0:
            self._parts[part.message] = []
        numbers = self._parts.setdefault(part.message, [])
        numbers.append(number)
        if part.number < part.parts - 1:
            return
        del self._parts[part.message]
        if part.key is not None:
            self._of(part.key)[part.key] = numbers
        elif self._retain_null_key:
            self._mark(numbers)

    def _mark(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._marks[number] = _KEPT

    async def kept(self) -> "KeptMessages":
        """Call it after the last entry. Incomplete messages are kept, because the rest is still to
        come.
        """
        for numbers in self._parts.values():
            self._mark(numbers)
        pace = Pace(_MESSAGES_A_TURN * 10)
        while self._latest:
            for latest in self._latest.pop().values():
                if isinstance(latest, list):
                    self._mark(latest)
                elif latest >= 0:
                    self._marks[latest] = _KEPT
                else:
                    self._marks[~latest] = _TOMBSTONE
                await pace.step()
        self._parts = {}
        return KeptMessages(self._marks, self._counts)


class KeptMessages:
    """The selected messages. Read the entries in the same order as the selection did."""

    def __init__(self, marks: bytearray, counts: "array[int]") -> None:
        self._marks = marks
        self._counts = counts
        self._entries = self._at = 0  # how far entries and marks have been read
        self._alike = True

    @property
    def complete(self) -> bool:
        """Whether all entries of the selection have been read again."""
        return self._alike and self._entries == len(self._counts)

    @property
    def left_out(self) -> int:
        return self._marks.count(_LEFT_OUT)

    @property
    def tombstones(self) -> int:
        """The number of kept messages that delete their key."""
        return self._marks.count(_TOMBSTONE)

    def of(self, kept: Kept) -> Kept | None:
        """What remains of the next entry; None if nothing remains."""
        count = self._counts[self._entries] if self._entries < len(self._counts) else 0
        self._entries += 1
        first, self._at = self._at, self._at + count
        if count == 1:
            mark = self._marks[first]
            if mark == _TOMBSTONE:
                return kept._replace(entry=readable_tombstone(kept.entry))
            return kept if mark else None
        if count != kept.messages:
            self._alike = False
            return None
        span = self._marks[first : self._at]
        left = count - span.count(_LEFT_OUT)
        if not left:
            return None
        if left == kept.messages:
            return kept
        return kept._replace(bits=int(span[::-1].translate(_TO_DIGITS), 2))
