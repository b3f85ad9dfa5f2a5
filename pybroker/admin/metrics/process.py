"""Metrics of the process under the names of Prometheus' clients, from /proc if there is one."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pybroker.admin.metrics.rows import rows
from pybroker.base.metrics import Exposition

_GAUGES: Final = rows(
    "gauge",
    "",
    """
process_resident_memory_bytes | /proc/self/stat | Resident memory of the process in bytes.
process_virtual_memory_bytes | /proc/self/stat | Virtual memory of the process in bytes.
process_open_fds | /proc/self/fd | Open file descriptors.
process_max_fds | limits | Limit of open file descriptors.
process_start_time_seconds | /proc/self/stat | Start of the process, in seconds since 1970.
""",
)
_COUNTERS: Final = rows(
    "counter",
    "",
    """
process_cpu_seconds_total | rusage | User and system CPU time of all threads.
""",
)
ROWS: Final = (*_GAUGES, *_COUNTERS)
_PROC: Final = Path("/proc")


def add_process(exposition: Exposition) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    exposition.add("process_cpu_seconds_total", usage.ru_utime + usage.ru_stime)
    exposition.add("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for name, value in _from_proc():
        exposition.add(name, value)


def _from_proc() -> Iterator[tuple[str, float]]:
    """The metrics in /proc; none if the system has no /proc."""
    try:
        fields = (_PROC / "self/stat").read_text().rpartition(")")[2].split()
        boot = (_PROC / "stat").read_text().partition("\nbtime ")[2].partition("\n")[0]
        descriptors = len(os.listdir(_PROC / "self/fd")) - 1  # without this listing's
    except OSError:
        return
    ticks, page_bytes = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    yield "process_start_time_seconds", int(boot) + int(fields[19]) / ticks
    yield "process_virtual_memory_bytes", int(fields[20])
    yield "process_resident_memory_bytes", int(fields[21]) * page_bytes
    yield "process_open_fds", descriptors
