"""Outcomes of transactions by local id: one byte each, in chunks, for the retention time.

A coordinator's ids are dense, so a chunk is a plain bytearray. A snapshot writes only the chunks
that have changed. Expiry is coarse and needs no timestamp per transaction: now and then a mark
records "up to this id all had ended by now"; once the mark is older than the retention time, the
outcomes up to that id are dropped.

The time is the coordinator's own (`latest_ms`): it advances only while the coordinator is served,
and continues where it stopped. So a change of the wall clock, back or forward, neither drops
outcomes too early nor keeps them forever, and nothing expires while clients cannot ask.
"""

import zlib
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


class OutcomeWindow:
    def __init__(self, retention_ms: int) -> None:
        self._retention_ms = retention_ms
        self._chunks: dict[int, bytearray] = {}
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

    def record(self, local_id: int, outcome: TxnStatus) -> None:
        if not self._retention_ms:
            return
        number = local_id // CHUNK_IDS
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = bytearray(CHUNK_IDS)
        chunk[local_id % CHUNK_IDS] = outcome
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
        self._chunks[number] = bytearray(zlib.decompress(packed))

    def take_changes(self) -> tuple[dict[int, bytes], list[int]]:
        """The changes to write with a snapshot: packed chunks by number, and numbers to delete."""
        changed = {number: zlib.compress(self._chunks[number], _QUICK) for number in self._changed}
        expired = list(self._expired)
        self._changed.clear()
        self._expired.clear()
        return changed, expired
