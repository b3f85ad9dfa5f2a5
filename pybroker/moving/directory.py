"""A data directory as the source or the target of a move."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.os_disk import OsDisk
from managed_ledger.storage.embedded.read_only import ReadOnlyDirectory
from pybroker.base.runtime import Clock
from pybroker.moving.record import MoveFailed

_OTHERS: Final = frozenset({"lost+found"})


@asynccontextmanager
async def directory_source(path: Path) -> AsyncIterator[ReadOnlyDirectory]:
    """Raises NotADirectoryError, DirectoryInUse if a broker uses it, CorruptStorage for damage."""
    source = ReadOnlyDirectory(path)
    await source.open()
    try:
        yield source
    finally:
        await source.close()


@asynccontextmanager
async def directory_target(path: Path, clock: Clock) -> AsyncIterator[EmbeddedBackend]:
    """Raises MoveFailed for a directory with other files, DirectoryInUse, CorruptStorage."""
    _check_empty(path)
    backend = EmbeddedBackend(OsDisk(path), clock)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


def _check_empty(path: Path) -> None:
    """Raises MoveFailed. Accepts the target of an earlier attempt, which the move itself checks."""
    if path.is_dir() and not (path / "journal").is_dir():
        found = sorted(each.name for each in path.iterdir() if each.name not in _OTHERS)
        if found:
            raise MoveFailed(
                f"{path} has other files in it, such as {found[0]}: choose an empty one"
            )
