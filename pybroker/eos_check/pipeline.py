"""The pipeline under test: the user's command in its own session, so that `kill` ends all of it.

A process that the command starts may leave its process group, as Spark's Python workers do, or the
session, as a daemon does. But it inherits the environment, by which `kill` finds it.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pybroker.eos_check.class_archive import ClassArchive
from pybroker.eos_check.marked_processes import kill_all

_LOG_TAIL_BYTES: Final = 4000
_JAVA_OPTIONS: Final = "JAVA_TOOL_OPTIONS"


class Pipeline:
    """`command`, with its output in `log`. It does not run before `start`.

    `mark` is the variable of the environment whose value no other process has. `records`: its JVMs
    write the archive instead of using it.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        mark: str,
        log: Path,
        archive: ClassArchive | None = None,
        *,
        records: bool = False,
    ) -> None:
        self.lives = 0
        self._command = list(command)
        self._archive = archive or ClassArchive(None)
        self._records = records and _JAVA_OPTIONS not in os.environ
        options = {_JAVA_OPTIONS: self._archive.options(records=records)}
        self._environment = {**options, **os.environ, **environment}
        self._mark = f"{mark}={environment[mark]}".encode()
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the command. Raises OSError if it does not exist."""
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
        """The exit code; None while the command runs."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """Sends SIGKILL to all processes; returns when the command itself has ended. Idempotent."""
        if self._process is None:
            return
        session = self._process.pid
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
        kill_all(self._mark, session)
        self._process.wait()

    def end(self, stop: threading.Event) -> None:
        """Ends a pipeline that has done its work. With `records`, JVMs first write the archive."""
        if self._process is not None and self._records:
            self._archive.written_by(self._mark, self._process.pid, stop)
        self.kill()

    def log_tail(self) -> str:
        """The last lines of the command's output."""
        return tail(self._log)


def tail(log: Path) -> str:
    """The last lines of a file; empty if the file cannot be read."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").strip()
    return ""
