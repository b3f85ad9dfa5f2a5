"""An archive of the classes that the pipeline's JVMs load, so that later JVMs start sooner.

Spark's JVM spends more than half of its start on loading and verifying classes. A JVM of version 13
or later can write an archive of them when it exits normally, and map it at its next start (dynamic
class-data sharing). The first run without faults makes the archive. A JVM with other class paths or
of another version does not use it, and older JVMs ignore the options.
"""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

from pybroker.eos_check.marked_processes import with_mark

# A JVM spends most of its start compiling code that a pipeline with so few messages hardly runs.
COMPILES_LESS: Final = "-XX:TieredStopAtLevel=1"
_QUIET: Final = "-XX:+IgnoreUnrecognizedVMOptions -Xlog:cds*=off"
_JVM: Final = "java"
_TURN_S: Final = 0.1
_WRITTEN_WITHIN_S: Final = 60.0


class ClassArchive:
    """The archive in `directory`; None: there is no archive."""

    def __init__(self, directory: str | None) -> None:
        self._path = None if directory is None else Path(directory) / "classes.jsa"

    def options(self, *, records: bool) -> str:
        """Options for a JVM that writes the archive, or for one that uses it if it exists."""
        if self._path is None or any(each.isspace() or each in "'\"" for each in str(self._path)):
            return COMPILES_LESS
        if records:
            return f"{COMPILES_LESS} {_QUIET} -XX:ArchiveClassesAtExit={self._path}"
        if self._path.exists():
            return f"{COMPILES_LESS} {_QUIET} -XX:SharedArchiveFile={self._path}"
        return COMPILES_LESS

    def written_by(self, mark: bytes, session: int, stop: threading.Event) -> None:
        """Ends the pipeline's JVMs, and returns when they have written the archive.

        If a JVM does not end in time, the archive is deleted.
        """
        for pid in _jvms(mark, session):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
        limit_s = time.monotonic() + _WRITTEN_WITHIN_S
        while _jvms(mark, session):
            if time.monotonic() > limit_s or stop.wait(_TURN_S):
                if self._path is not None:
                    self._path.unlink(missing_ok=True)
                break


def _jvms(mark: bytes, session: int) -> list[int]:
    return [pid for pid in with_mark(mark, session) if _name(pid) == _JVM]


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
