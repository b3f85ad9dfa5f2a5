"""Latencies and sizes of writes, counted once per run of entries.

The bounds are Apache Pulsar's. A run's entries share its latency. For a long run the sizes of a few
evenly spread entries represent all.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from pybroker.broker.persistent.topic_measures import TopicMeasures

LATENCY_MS: Final = (0.5, 1, 5, 10, 20, 50, 100, 200, 1000)
SIZE_BYTES: Final = (128, 512, 1024, 2048, 4096, 16384, 102400, 1048576)
_LOOKED_AT: Final = 4  # entries of a run

# Where each of the three histograms begins in `counts`: the counts by bound, the count above all
# bounds, the sum.
LATENCIES: Final = 0
LEDGER_LATENCIES: Final = LATENCIES + len(LATENCY_MS) + 2
SIZES: Final = LEDGER_LATENCIES + len(LATENCY_MS) + 2
_END: Final = SIZES + len(SIZE_BYTES) + 2
_NOTHING: Final = array("d", bytes(8 * _END))


class WriteCounts:
    """Counts of one topic since it was loaded. An idle topic has no arrays yet."""

    __slots__ = ("_measures", "counts", "entries")

    def __init__(self, measures: TopicMeasures) -> None:
        self._measures = measures
        self.entries = 0
        self.counts: array[float] = _NOTHING

    def durable(self, entries: Sequence[bytes], size_bytes: int, waited_s: float) -> None:
        """Called when the storage has confirmed entries that were in flight for `waited_s`."""
        if self.counts is _NOTHING:
            self.counts = array("d", _NOTHING)
        counts, number, waited_ms = self.counts, len(entries), 1000 * waited_s
        written_ms = 1000 * self._measures.commits.last_s
        self.entries += number
        self._measures.publish_ms.add(waited_ms, number)
        counts[bisect_left(LATENCY_MS, waited_ms)] += number
        counts[LEDGER_LATENCIES - 1] += waited_ms * number
        counts[LEDGER_LATENCIES + bisect_left(LATENCY_MS, written_ms)] += number
        counts[SIZES - 1] += written_ms * number
        counts[_END - 1] += size_bytes
        if number == 1:
            counts[SIZES + bisect_left(SIZE_BYTES, size_bytes)] += 1
            return
        step = -(-number // _LOOKED_AT)
        for first in range(0, number, step):
            bucket = SIZES + bisect_left(SIZE_BYTES, len(entries[first]))
            counts[bucket] += min(step, number - first)
