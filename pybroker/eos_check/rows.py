"""Rows of a database, as a command of the user's prints them: each must be there once, as a message
of an output must.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from pybroker.eos_check.run_result import CannotRun
from pybroker.eos_check.topics import Output

ROWS: Final = "the rows"  # stands for the topic
_LIMIT_S: Final = 60.0
_MOST_BYTES: Final = 16 * 1024 * 1024
_SAID_CHARACTERS: Final = 500


class Rows:
    """`command` prints a row in each line. Without a command there are none."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._failure = ""

    def read(self) -> tuple[Output, ...]:
        """None while the command fails: the pipeline may not have created its database yet."""
        if not self._command:
            return ()
        try:
            ended = subprocess.run(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment,
                timeout=_LIMIT_S,
                check=False,
            )
        except (subprocess.TimeoutExpired, OSError) as error:
            self._failure = str(error)
            return ()
        said = ended.stdout[:_MOST_BYTES]
        if ended.returncode:
            tail = said.decode(errors="replace").strip()[-_SAID_CHARACTERS:]
            self._failure = f"it ended with code {ended.returncode}: {tail}"
            return ()
        self._failure = ""
        return tuple(Output(ROWS, "", line) for line in said.splitlines() if line)

    def require_read(self) -> None:
        """Raises CannotRun if the rows are not known, at the end of a run."""
        if self._failure:
            raise CannotRun(f"the command of --rows cannot read the rows: {self._failure}")
