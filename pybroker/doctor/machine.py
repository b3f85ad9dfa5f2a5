"""Checks ports, file descriptors, the clock and memory."""

import ctypes
import errno
import os
import resource
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from pybroker.base.configuration.config import PORTS, BrokerConfig
from pybroker.base.configuration.config_file import camel_case
from pybroker.doctor.disk import existing
from pybroker.doctor.finding import Finding, Level
from pybroker.doctor.running import Holder

_ENOUGH_DESCRIPTORS: Final = 4096
_TOO_FEW_DESCRIPTORS: Final = 128
_MIB: Final = 1024**2
_LOW_MEMORY_BYTES: Final = 512 * _MIB
_TOO_LOW_MEMORY_BYTES: Final = 96 * _MIB
_TIMEX_BYTES: Final = 512  # more than the size of struct timex
_UNSYNCHRONISED: Final = 5  # TIME_ERROR
_CLOCK_SLACK_S: Final = 60.0


def check_ports(config: BrokerConfig, holder: Holder | None = None) -> list[Finding]:
    """`holder`: the process that uses the data directory."""
    wanted = {name: getattr(config, name) for name in PORTS}
    return [
        _check_port(camel_case(name), config.bind_address, port, holder)
        for name, port in wanted.items()
        if port  # None: no port; 0: any free port
    ]


def _check_port(key: str, host: str, port: int, holder: Holder | None) -> Finding:
    name = f"port {port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and holder is not None:
                if holder.ports is None:
                    found = f"in use on {host}, presumably by that broker ({key})"
                    return Finding(name, Level.OK, found)
                if port in holder.ports:
                    return Finding(name, Level.OK, f"that broker listens on {host} ({key})")
            return Finding(name, Level.ERROR, _why_not(error, host), _what_to_do(error, key))
    return Finding(name, Level.OK, f"free on {host} ({key})")


def _why_not(error: OSError, host: str) -> str:
    in_use = error.errno == errno.EADDRINUSE
    return f"in use on {host}" if in_use else f"cannot be bound on {host}: {error.strerror}"


def _what_to_do(error: OSError, key: str) -> str:
    if error.errno == errno.EACCES:
        return f"set {key} to a port above 1023, or allow this user to bind it"
    return f"stop the process that listens there, or set {key} to another port"


def check_descriptors(config: BrokerConfig) -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    name = "file descriptors"
    if hard == resource.RLIM_INFINITY:
        return Finding(name, Level.OK, "unlimited")
    advice = "raise the limit: ulimit -n, or LimitNOFILE= in the systemd unit"
    if hard < _TOO_FEW_DESCRIPTORS:
        return Finding(name, Level.ERROR, f"{hard} at most", advice)
    wanted = max(_ENOUGH_DESCRIPTORS, config.broker_max_connections)
    if hard < wanted:
        return Finding(
            name,
            Level.WARNING,
            f"{hard} at most: fewer than the {config.broker_max_connections} connections of "
            "brokerMaxConnections and the files of the topics need",
            advice,
        )
    return Finding(name, Level.OK, f"{hard} at most")


def check_clock(data_dir: Path) -> Finding:
    """Checks the clock, on which message times, expiry and tokens depend."""
    advice = "set the clock, and keep it with an NTP client (chrony, systemd-timesyncd)"
    newest = _newest_change_s(data_dir)
    behind_s = newest - time.time()
    if behind_s > _CLOCK_SLACK_S:
        return Finding(
            "clock", Level.ERROR, f"{behind_s:.0f} s behind the newest file in {data_dir}", advice
        )
    synchronised = _is_synchronised()
    if synchronised is False:
        return Finding("clock", Level.WARNING, "not synchronised", advice)
    text = "synchronised" if synchronised else "plausible; synchronisation is unknown here"
    return Finding("clock", Level.OK, text)


def _newest_change_s(data_dir: Path) -> float:
    """The time of the newest file directly in the closest directory that exists; 0 if there is
    none.
    """
    newest = 0.0
    if not data_dir.is_dir():
        return newest
    with os.scandir(existing(data_dir)) as entries:
        for entry in entries:
            newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
    return newest


def _is_synchronised() -> bool | None:
    """Whether the kernel considers the clock synchronised; None where it cannot be asked."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    return None if state < 0 else bool(state != _UNSYNCHRONISED)


def check_memory() -> Finding:
    available = _available_bytes()
    if available is None:
        return Finding("memory", Level.OK, "unknown on this system")
    text = f"{available // _MIB:,} MiB available"
    if available < _TOO_LOW_MEMORY_BYTES:
        return Finding(
            "memory",
            Level.ERROR,
            text,
            "free some: an idle broker takes about 45 MiB, a busy one 350",
        )
    if available < _LOW_MEMORY_BYTES:
        return Finding("memory", Level.WARNING, text, "a busy broker takes up to 350 MiB")
    return Finding("memory", Level.OK, text)


def _available_bytes() -> int | None:
    """Available memory: the smaller value of the machine's and the control group's."""
    found = [_machine_bytes(), _cgroup_bytes()]
    known = [each for each in found if each is not None]
    return min(known) if known else None


def _machine_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None


def _cgroup_bytes() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return int(limit) - used if limit.isdecimal() else None
