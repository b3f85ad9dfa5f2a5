"""Room on the disk of the runs: a broker without it refuses messages, for no fault of a run."""

import shutil
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from pybroker.eos_check.run_result import CannotRun

_ROOM_BYTES: Final = 4 * 1024 * 1024  # below a quarter of it, brokers refuse messages


def check_room(directory: Path) -> None:
    """Raises CannotRun if the disk is nearly full."""
    if shutil.disk_usage(directory).free < _ROOM_BYTES:
        raise CannotRun(
            f"the disk of {gettempdir()} is nearly full, and the brokers keep their data "
            "there: make room, or set TMPDIR to a folder on another disk"
        )
