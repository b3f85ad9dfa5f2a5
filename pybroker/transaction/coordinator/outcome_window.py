"""Outcomes of transactions by local id: one byte each, in chunks, for the retention time; with two
more bytes for the owner, if there are owners.

A coordinator's ids are dense, so a chunk is a plain bytearray. A snapshot writes only the chunks
that have changed. Expiry is coarse and needs no timestamp per transaction: now and then a mark
records "up to this id all had ended by now"; once the mark is older than the retention time, the
outcomes up to that id are dropped.

The time is the coordinator's own (`latest_ms`): it advances only while the coordinator is served,
and continues where it stopped. So a change of the wall clock, back or forward, neither drops
outcomes too early nor keeps them forever, and nothing expires while clients cannot ask.
"""

import json
import sys
import zlib
from array import array
from collections import deque
from dataclasses import dataclass
from typing import Final

from pybroker.transaction.txn_status import TxnStatus

CHUNK_IDS: Final = 16_384
_MARKS_PER_RETENTION: Final = 8
_QUICK: Final = 1  # compression level: runs of one value pack well at any level
_NOT_ENDED: Final = 0  # OPEN's value, which is never an outcome


@dataclass(frozen=True, slots=True)
class OutcomeMark:
    """At `at_ms` every transaction up to `watermark` had ended."""

    at_ms: int
    watermark: int


class _Owners:
    """The owners of a chunk's transactions: for each the number of a name, counted from 1."""

    __slots__ = ("_number_of", "names", "numbers")

    def __init__(self, numbers: "array[int]", names: list[str]) -> None:
        self.numbers = numbers
        self.names = names
        self._number_of = {name: number for number, name in enumerate(names, 1)}

    def note(self, place: int, owner: str) -> None:
        if owner not in self._number_of:
            self.names.append(owner)
            self._number_of[owner] = len(self.names)
        self.numbers[place] = self._number_of[owner]

    def get(self, place: int) -> str | None:
        number = self.numbers[place]
        return self.names[number - 1] if number else None


class OutcomeWindow:
    def __init__(self, retention_ms: int) -> None:
        self._retention_ms = retention_ms
        self._chunks: dict[int, bytearray] = {}
        self._owners: dict[int, _Owners] = {}  # of the chunks whose transactions have any
        self._changed: dict[int, None] = {}
        self._expired: dict[int, None] = {}
        self._marks: deque[OutcomeMark] = deque()
        self.latest_ms = 0  # the latest time reported
        self.due_ms = 0  # `passed` has nothing to mark or to drop before

    def get(self, local_id: int) -> TxnStatus | None:
        chunk = self._chunks.get(local_id // CHUNK_IDS)
        if chunk is None or (outcome := chunk[local_id % CHUNK_IDS]) == _NOT_ENDED:
            return None
        return TxnStatus(outcome)

    def owner_of(self, local_id: int) -> str | None:
        """The owner of a transaction whose outcome is known; None if it has none."""
        owners = self._owners.get(local_id // CHUNK_IDS)
        return None if owners is None else owners.get(local_id % CHUNK_IDS)

    def record(self, local_id: int, outcome: TxnStatus, owner: str | None = None) -> None:
        """An owner of None leaves the one that is known."""
        if not self._retention_ms:
            return
        number = local_id // CHUNK_IDS
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = bytearray(CHUNK_IDS)
        chunk[local_id % CHUNK_IDS] = outcome
        if owner is not None:
            if (owners := self._owners.get(number)) is None:
                owners = self._owners[number] = _Owners(_nobody(), [])
            owners.note(local_id % CHUNK_IDS, owner)
        self._changed[number] = None

    def passed(self, at_ms: int, watermark: int) -> None:
        """The time is `at_ms`, and all ids up to `watermark` have ended. Marks this now and then,
        and drops expired outcomes.
        """
        self.latest_ms = max(self.latest_ms, at_ms)
        interval_ms = self._retention_ms // _MARKS_PER_RETENTION
        if not self._marks or at_ms - self._marks[-1].at_ms >= interval_ms:
            self.restore_mark(OutcomeMark(at_ms, watermark))
        while self._marks and self._marks[0].at_ms + self._retention_ms < self.latest_ms:
            self._expire(self._marks.popleft().watermark)
        self.due_ms = 0
        if self._marks:
            expires_ms = self._marks[0].at_ms + self._retention_ms
            self.due_ms = min(self._marks[-1].at_ms + interval_ms, expires_ms + 1)

    def _expire(self, watermark: int) -> None:
        """Drop the outcomes up to `watermark`: whole chunks, and the beginning of the next one."""
        number, below = divmod(watermark + 1, CHUNK_IDS)
        chunk = self._chunks.get(number)
        if chunk is not None and any(chunk[:below]):
            chunk[:below] = bytes(below)
            self._changed[number] = None
        for whole in [each for each in self._chunks if each < number]:
            del self._chunks[whole]
            self._owners.pop(whole, None)
            self._changed.pop(whole, None)
            self._expired[whole] = None

    def marks(self) -> list[OutcomeMark]:
        return list(self._marks)

    def restore_mark(self, mark: OutcomeMark) -> None:
        self.latest_ms = max(self.latest_ms, mark.at_ms)
        if not self._marks or mark.at_ms > self._marks[-1].at_ms:
            self._marks.append(mark)
            self.due_ms = 0

    def restore_chunk(self, number: int, packed: bytes) -> None:
        if not self._retention_ms:
            self._expired[number] = None
            return
        plain = zlib.decompress(packed)
        self._chunks[number] = bytearray(plain[:CHUNK_IDS])
        self._owners.pop(number, None)
        if names := plain[3 * CHUNK_IDS :]:
            numbers = array("H", plain[CHUNK_IDS : 3 * CHUNK_IDS])
            self._owners[number] = _Owners(_in_order(numbers), json.loads(names))

    def take_changes(self) -> tuple[dict[int, bytes], list[int]]:
        """The changes to write with a snapshot: packed chunks by number, and numbers to delete."""
        changed = {number: self._packed(number) for number in self._changed}
        expired = list(self._expired)
        self._changed.clear()
        self._expired.clear()
        return changed, expired

    def _packed(self, number: int) -> bytes:
        """The outcomes, and behind them the owners, which versions without them carry along."""
        plain = bytes(self._chunks[number])
        if (owners := self._owners.get(number)) is not None:
            names = json.dumps(owners.names).encode()
            plain = b"".join((plain, _in_order(owners.numbers).tobytes(), names))
        return zlib.compress(plain, _QUICK)


def _nobody() -> "array[int]":
    return array("H", bytes(2 * CHUNK_IDS))


def _in_order(numbers: "array[int]") -> "array[int]":
    """As stored, or back: the lower byte comes first."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers
