"""Statistics of group commits since the process started."""

from typing import Final

from managed_ledger.histogram import SECONDS, Histogram

_OPERATIONS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_WEIGHT: Final = 1 / 32  # of the newest commit in `recent_s`
_BYTES: Final = tuple(4**power for power in range(4, 13))  # 256 B to 16 MiB


class CommitStats:
    """`last_s` is the duration of the newest completed write; its callbacks may read it."""

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)  # from the start of the write until durable
        self.fsync_seconds = Histogram(SECONDS)  # the fsync part, if there is a disk
        self.operations = Histogram(_OPERATIONS)
        self.size_bytes = Histogram(_BYTES)
        self.last_s = 0.0
        self.recent_s = 0.0  # an exponentially weighted mean

    def written(self, took_s: float, operations: int, size_bytes: int) -> None:
        self.last_s = took_s
        self.recent_s += (took_s - self.recent_s) * (_WEIGHT if self.seconds.total else 1)
        self.seconds.add(took_s)
        self.operations.add(operations)
        self.size_bytes.add(size_bytes)
