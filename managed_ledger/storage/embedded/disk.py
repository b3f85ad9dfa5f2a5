"""The disk as the embedded engine sees it: the seam for a simulated disk.

Names are relative paths with '/' between folders ("journal/0000000001", "ledgers/42"); a folder is
created with its first file. Calls block; the engine makes them from worker threads.
"""

from collections.abc import Callable, Sequence
from typing import Protocol


class DiskFile(Protocol):
    def pwritev(self, parts: Sequence[bytes], offset: int) -> None:
        """Write all parts in sequence from `offset` on. Not durable until synced."""
        ...

    def pwritev_uncached(self, parts: Sequence[bytes], offset: int) -> None:
        """As `pwritev`, for data that is not read soon; one thread at a time."""
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        ...

    def fdatasync(self) -> None:
        """When this returns, everything written to the file so far, and its length, survives a
        power failure.
        """
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    def create(self, name: str) -> DiskFile:
        """A new empty file. Raises FileExistsError. The name is durable after `sync_folder`."""
        ...

    def open(self, name: str) -> DiskFile:
        """An existing file, for reading and writing. Raises FileNotFoundError."""
        ...

    def names(self, folder: str) -> list[str]:
        """Full names ("folder/x") of the files in a folder, sorted; empty if there is no such
        folder.
        """
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces `new`. Durable after `sync_folder`."""
        ...

    def unlink(self, name: str) -> None:
        """Idempotent."""
        ...

    def sync_folder(self, folder: str) -> None: ...

    def free_bytes(self) -> int | None:
        """Free bytes; None if unknown. Does not block."""
        ...

    def lock(self) -> None:
        """Lock the data directory for this process. Raises DirectoryInUse."""
        ...

    def unlock(self) -> None: ...


def numbered_files(disk: Disk, folder: str, name_of: Callable[[int], str]) -> list[int]:
    """The numbers of the files whose names `name_of` produces. Other files are ignored, for
    instance a copy with its number in another format.
    """
    numbers = []
    for name in disk.names(folder):
        digits = name.rpartition("/")[2]
        if digits.isdecimal() and name_of(int(digits)) == name:
            numbers.append(int(digits))
    return numbers
