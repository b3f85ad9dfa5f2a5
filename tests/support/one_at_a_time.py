"""Things that are fetched or built once and kept in build/, by one process while others wait."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

BUILD: Final = Path(__file__).resolve().parents[2] / "build"


@contextmanager
def one_at_a_time(what: str) -> Iterator[Path]:
    """The folder to keep them in, which need not exist yet."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield BUILD / what
