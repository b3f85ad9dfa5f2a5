"""The broker that runs on the data directory while the doctor looks: its process and its ports.

Linux says which process holds a lock and which ports it listens on, unless it belongs to another
user. Elsewhere only the lock is known.
"""

import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from managed_ledger.storage.embedded.os_disk import LOCK_FILE

_PROC: Final = Path("/proc")
_LOCK: Final = re.compile(r"\S+: FLOCK .* (\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ")
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_LISTENS: Final = "0A"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has locked the data directory. `ports`: those that it listens on; None: unknown."""

    process: int | None = None
    ports: frozenset[int] | None = None

    @property
    def may_be_broker(self) -> bool:
        """`pybroker check` and `pybroker move` lock the directory too, and listen nowhere."""
        return self.ports is None or bool(self.ports)

    @property
    def name(self) -> str:
        return "another process" if self.process is None else f"process {self.process}"


def holder_of(data_dir: Path) -> Holder | None:
    """None: nobody uses the directory."""
    try:
        lock = os.open(data_dir / LOCK_FILE, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        process = _process(os.fstat(lock))
        return Holder(process, None if process is None else _ports(process))
    finally:
        os.close(lock)
    return None


def _process(lock: os.stat_result) -> int | None:
    wanted = os.major(lock.st_dev), os.minor(lock.st_dev), lock.st_ino
    try:
        lines = (_PROC / "locks").read_text().splitlines()
    except OSError:
        return None
    for found in filter(None, map(_LOCK.match, lines)):
        process, major, minor, inode = found.groups()
        if (int(major, 16), int(minor, 16), int(inode)) == wanted:
            return int(process) or None  # 0: in another container
    return None


def _ports(process: int) -> frozenset[int] | None:
    folder = _PROC / str(process)
    try:
        sockets = {
            found[1]
            for each in os.scandir(folder / "fd")
            if (found := _SOCKET.fullmatch(os.readlink(each.path)))
        }
        rows = [
            line.split()
            for table in ("tcp", "tcp6")
            if (folder / "net" / table).exists()
            for line in (folder / "net" / table).read_text().splitlines()[1:]
        ]
    except OSError:
        return None
    return frozenset(
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if row[3] == _LISTENS and row[9] in sockets
    )
