"""How fast this disk makes bytes durable now: every rate and latency depends on it."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

_BLOCK = bytes(4096)


def quantile(sorted_values: Sequence[float], q: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(q * len(sorted_values)))]


def fdatasync_ms(folder: Path, count: int) -> list[float]:
    """The durations in ms of `count` appends of 4 KiB, each followed by fdatasync."""
    path = folder / "calibration"
    taken = []
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(count):
            started = time.perf_counter()
            os.write(descriptor, _BLOCK)
            os.fdatasync(descriptor)
            taken.append((time.perf_counter() - started) * 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    return taken
