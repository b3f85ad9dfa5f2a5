"""Finds and ends processes by a variable of their environment.

A process that a pipeline starts may leave its process group and its session, but it inherits the
environment. So `Undertaker` ends everything that a check started, however the check ends, even by
SIGKILL. It is a process that waits until the check's end of a pipe is closed.

This file is also the program of that process, so it imports nothing of pybroker.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Final, Self

_MARK: Final = "PYBROKER_EOS_CHECK"
_ROUNDS: Final = 10
_ENDS_WITHIN_S: Final = 30.0


def with_mark(mark: bytes, session: int | None = None) -> list[int]:
    """The processes that have `mark` in their environment or belong to the session. Linux only."""
    if sys.platform != "linux":
        return []
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # After the name, which may contain anything: state, parent, group, session.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] == "Z":
                    continue
                environment = (entry / "environ").read_bytes().split(b"\0")
                if int(fields[3]) == session or mark in environment:
                    found.append(int(entry.name))
    return found


def kill_all(mark: bytes, session: int | None = None) -> None:
    """Sends SIGKILL to these processes, and to processes that they start meanwhile."""
    for _ in range(_ROUNDS):
        pids = with_mark(mark, session)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            break


class Undertaker:
    """Ends the processes that the block starts, and deletes `directory`, when the block or this
    process ends.
    """

    def __enter__(self) -> Self:
        mark = uuid.uuid4().hex
        self.directory = tempfile.mkdtemp(prefix="pybroker-eos-")
        program = [sys.executable, "-I", "-S", __file__, f"{_MARK}={mark}", self.directory]
        self._process = subprocess.Popen(
            program, stdin=subprocess.PIPE, cwd="/", start_new_session=True
        )
        os.environ[_MARK] = mark  # this process sets it only for processes that it starts
        return self

    def __exit__(self, *_: object) -> None:
        del os.environ[_MARK]
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDS_WITHIN_S)


def main(mark: str, directory: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    kill_all(mark.encode())
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
