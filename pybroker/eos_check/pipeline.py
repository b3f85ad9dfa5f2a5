"""The pipeline under test: the user's command, in a session of its own so that all of it dies.

A process that the command starts may leave its process group (Spark's Python workers do), but
stays in the session unless it takes pains. `kill` ends every process of the session.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_LOG_TAIL_BYTES: Final = 4000


class Pipeline:
    """`command` with its output in `log`. It is not running before `start`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.lives = 0
        self._command = list(command)
        self._environment = os.environ | environment
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises OSError if there is no such command."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )
        self.lives += 1

    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """SIGKILL to all of its processes; returns when the first has ended. Idempotent."""
        if self._process is None:
            return
        session = self._process.pid
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
        for pid in _others_of(session):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def log_tail(self) -> str:
        """The last lines of its output, as text."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip()
        return ""


def _others_of(session: int) -> list[int]:
    """The processes of the session that have left its first group. Linux only."""
    if sys.platform != "linux":
        return []
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # Behind the name, which may contain anything: state, parent, group, session.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    found.append(int(entry.name))
    return found
