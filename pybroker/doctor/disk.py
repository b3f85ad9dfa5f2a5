"""Checks the data directory: whether the broker may use it, its free space, the time of a sync."""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from managed_ledger.storage.embedded.os_disk import sync_data
from pybroker.doctor.finding import Finding, Level
from pybroker.doctor.running import Holder

_WRITES: Final = 50
_WRITE_BYTES: Final = 4096
_SLOW_S: Final = 0.010  # every commit of every producer waits for a sync
_TOO_FAST_S: Final = 0.000_02  # not a device: memory, or a cache that lies
_LOW_BYTES: Final = 5 * 1024**3
_TOO_LOW_BYTES: Final = 256 * 1024**2
_MIB: Final = 1024**2


def existing(data_dir: Path) -> Path:
    """The directory itself, or the closest one above it that exists."""
    path = data_dir.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def check_data_directory(data_dir: Path, holder: Holder | None = None) -> Finding:
    name = "data directory"
    place = existing(data_dir)
    if not place.is_dir():
        return Finding(
            name, Level.ERROR, f"{place} is not a directory", "choose another one with --data-dir"
        )
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            name,
            Level.ERROR,
            f"{place} is not writable by user {os.getuid()}",
            "change its owner, or choose another one with --data-dir",
        )
    if holder is not None and holder.may_be_broker:
        return Finding(name, Level.OK, f"a broker runs on {data_dir.absolute()}: {holder.name}")
    if holder is not None:
        return Finding(
            name,
            Level.ERROR,
            f"{data_dir} is in use by {holder.name}, which is no broker",
            "wait until it has ended, or choose another directory with --data-dir",
        )
    return Finding(name, Level.OK, f"{data_dir.absolute()} can be used")


def check_free_space(data_dir: Path) -> Finding:
    found = os.statvfs(existing(data_dir))
    free = found.f_bavail * found.f_frsize
    text = f"{free / 1024**3:.1f} GiB free"
    if free < _TOO_LOW_BYTES:
        return Finding(
            "free space",
            Level.ERROR,
            text,
            "free some space: a broker on a full disk refuses to publish",
        )
    if free < _LOW_BYTES:
        return Finding("free space", Level.WARNING, text, "plan for more before topics fill it")
    return Finding("free space", Level.OK, text)


def check_sync(data_dir: Path) -> Finding:
    """Measures fdatasync as the journal uses it: after a small write to a file of constant size."""
    name = "fdatasync"
    place = existing(data_dir)
    try:
        times = _sync_times(place)
    except OSError as error:
        return Finding(name, Level.ERROR, f"{place}: {error}", "choose a directory on a local disk")
    median, worst = statistics.median(times), max(times)
    text = f"{median * 1000:.2f} ms median, {worst * 1000:.2f} ms worst of {_WRITES}"
    if median > _SLOW_S:
        return Finding(
            name,
            Level.WARNING,
            text,
            "use a faster disk: every publish waits for one sync; "
            "--durability relaxed does not wait, and may lose messages in a power cut",
        )
    if median < _TOO_FAST_S:
        return Finding(
            name,
            Level.WARNING,
            text,
            f"no disk is that fast: {place} may be in memory (tmpfs) and lost in a power cut",
        )
    return Finding(name, Level.OK, text)


def _sync_times(place: Path) -> list[float]:
    times = []
    with tempfile.TemporaryFile(dir=place) as file:
        descriptor = file.fileno()
        os.truncate(descriptor, _MIB)
        for number in range(_WRITES):
            before = time.perf_counter()
            os.pwrite(descriptor, bytes(_WRITE_BYTES), number * _WRITE_BYTES)
            sync_data(descriptor)
            times.append(time.perf_counter() - before)
    return times
