"""Which messages a compaction keeps: the last of each key, unless that deletes the key.

Messages are known by their number in the order of the log, so what is kept is a byte for each of
them; the keys are forgotten before anything is written.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from pybroker.broker.compaction.compacted_log import Kept
from pybroker.broker.compaction.keyed_messages import OUT, Keyed, Part, Unreadable, look_at
from pybroker.runtime import Pace

log = logging.getLogger(__name__)

_MESSAGES_A_TURN: Final = 2000
_SHARDS: Final = 256
_TO_DIGITS: Final = bytes((48, 49)) + bytes(254)


class Selection:
    def __init__(self, retain_null_key: bool) -> None:
        self._retain_null_key = retain_null_key
        self._marks = bytearray()  # by number: 1 for what is kept
        # By key, in parts: one large dict would take long to grow, and to go. Several numbers are
        # the parts of one message.
        self._latest: list[dict[bytes, int | list[int]]] = [{} for _ in range(_SHARDS)]
        self._parts: dict[tuple[str, str], list[int]] = {}  # of messages not complete yet
        self._pace = Pace(_MESSAGES_A_TURN)

    @property
    def messages(self) -> int:
        """How many it has seen."""
        return len(self._marks)

    async def see(self, entries: Sequence[Kept]) -> None:
        """The next ones of the log."""
        for kept in entries:
            first = len(self._marks)
            self._marks += bytes(kept.messages)
            try:
                found = await look_at(kept.entry, kept.messages)
            except Unreadable as why:
                log.debug("%s is kept as it is: %s", kept.position, why)
                self._keep_whole(first, kept)
            else:
                if isinstance(found, Part):
                    self._see_part(first, found)
                else:
                    await self._see_batch(first, found, kept.bits)
            await self._pace.step(kept.messages)

    def _keep_whole(self, first: int, kept: Kept) -> None:
        if kept.bits is None:
            self._marks[first:] = b"\1" * kept.messages
            return
        for index in range(kept.messages):
            self._marks[first + index] = kept.bits >> index & 1

    async def _see_batch(self, first: int, found: list[Keyed], bits: int | None) -> None:
        for start in range(0, len(found), _MESSAGES_A_TURN):
            if start:
                await asyncio.sleep(0)
            stop = start + _MESSAGES_A_TURN
            left = None if bits is None else bits >> start
            self._see_messages(first + start, found[start:stop], left)

    def _see_messages(self, first: int, found: list[Keyed], bits: int | None) -> None:
        for number, keyed in enumerate(found, first):
            if bits is not None and not bits >> (number - first) & 1:
                continue  # an earlier compaction has left it out
            key, deletes = keyed
            if key is None:
                self._marks[number] = self._retain_null_key and keyed is not OUT
            elif deletes:
                self._of(key).pop(key, None)
            else:
                self._of(key)[key] = number

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
            self._marks[number] = 1

    async def kept(self) -> "KeptMessages":
        """All has been seen. What is not complete yet is kept: its end is still to come."""
        for numbers in self._parts.values():
            self._mark(numbers)
        pace = Pace(_MESSAGES_A_TURN * 10)
        while self._latest:
            for latest in self._latest.pop().values():
                self._mark([latest] if isinstance(latest, int) else latest)
                await pace.step()
        self._parts = {}
        return KeptMessages(self._marks)


class KeptMessages:
    """Gone through in the order of the selection."""

    def __init__(self, marks: bytearray) -> None:
        self._marks = marks
        self._at = 0

    @property
    def complete(self) -> bool:
        return self._at == len(self._marks)

    @property
    def left_out(self) -> int:
        return self._marks.count(0)

    def of(self, kept: Kept) -> Kept | None:
        """What is left of the next entry; None if that is nothing."""
        first, self._at = self._at, self._at + kept.messages
        if kept.messages == 1:
            return kept if self._marks[first : self._at] == b"\1" else None
        span = self._marks[first : self._at]
        left = span.count(1)
        if not left:
            return None
        if left == kept.messages:
            return kept
        return kept._replace(bits=int(span[::-1].translate(_TO_DIGITS), 2))
