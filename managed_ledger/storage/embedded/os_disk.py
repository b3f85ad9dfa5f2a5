"""Disk on the file system of the operating system, under one data directory."""

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from managed_ledger.errors import DirectoryInUse
from managed_ledger.storage.embedded.direct_io import DirectWriter, read_direct
from managed_ledger.storage.embedded.spare_descriptors import SpareDescriptors

MAX_PARTS: Final = 1024  # per pwritev
LOCK_FILE: Final = "lock"
LARGE_READ_BYTES: Final = 256 * 1024
LARGEST_DIRECT_READ_BYTES: Final = 16 * 1024 * 1024  # a direct read is briefly in memory twice
# Ignored when the parent folder is synced: it may belong to another user, or to a file system
# without sync (squashfs and autofs, among others).
_NOT_OURS_TO_SYNC: Final = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.EOPNOTSUPP)
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", None)
# On macOS, fsync only hands the data to the drive, whose cache a power cut empties; F_FULLFSYNC
# waits until the drive has written it. File systems without it, such as network shares, get fsync.
# Source: fcntl(2) and fsync(2) of macOS.
_FULL: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
_HAS_FDATASYNC: Final = hasattr(os, "fdatasync")
_NO_FULL_SYNC: Final = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY)


class OsDisk:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: int | None = None
        self._spare = SpareDescriptors()

    def create(self, name: str) -> "OsFile":
        self._make_folder((self.path / name).parent)
        return self._opened(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def open(self, name: str) -> "OsFile":
        return self._opened(name, os.O_RDWR)

    def _opened(self, name: str, flags: int) -> "OsFile":
        path = self.path / name
        return OsFile(self._spare.opened(lambda: os.open(path, flags, 0o640)), self._spare.refill)

    def names(self, folder: str) -> list[str]:
        try:
            found = self._spare.opened(lambda: os.scandir(self.path / folder))
        except FileNotFoundError:
            return []
        with found:
            return sorted(f"{folder}/{entry.name}" for entry in found if entry.is_file())

    def rename(self, old: str, new: str) -> None:
        os.replace(self.path / old, self.path / new)

    def unlink(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def sync_folder(self, folder: str) -> None:
        self._spare.opened(lambda: sync_folder(self.path / folder))
        self._spare.refill()

    def free_bytes(self) -> int | None:
        try:
            found = os.statvfs(self.path)
        except OSError:  # the next write will report it
            return None
        return found.f_bavail * found.f_frsize

    def lock(self) -> None:
        self._make_folder(self.path)
        lock = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise DirectoryInUse(
                f"the data directory {self.path} is in use by another process: stop that one, or "
                "choose another directory"
            ) from None
        self._lock = lock
        self._spare.refill()
        try:
            self._make_names_last()
        except OSError:
            self.unlock()
            raise

    def _make_names_last(self) -> None:
        """Sync existing folders: a process may have been killed after it created a folder and
        before it synced the parent.
        """
        self._spare.opened(lambda: sync_folder(self.path))
        try:
            self._spare.opened(lambda: sync_folder(self.path.parent))
        except OSError as error:
            if error.errno not in _NOT_OURS_TO_SYNC:
                raise

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._spare.close()

    def _make_folder(self, folder: Path) -> None:
        """Create a folder durably: without its name the files in it would be lost, too."""
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        try:
            self._spare.opened(lambda: sync_folder(folder.parent))
        except OSError:
            folder.rmdir()
            raise


class OsFile:
    def __init__(self, descriptor: int, closed: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._closed = closed
        self._direct: DirectWriter | None = None

    def pwritev(self, parts: Sequence[bytes], offset: int) -> None:
        write_views(self._descriptor, [memoryview(part) for part in parts if part], offset)

    def pwritev_uncached(self, parts: Sequence[bytes], offset: int) -> None:
        if self._direct is None:
            self._direct = DirectWriter(self._descriptor, partial(write_views, self._descriptor))
        self._direct.write(parts, offset)

    def pread(self, size: int, offset: int) -> bytes:
        if LARGE_READ_BYTES <= size <= LARGEST_DIRECT_READ_BYTES and not self._cached(offset, size):
            with suppress(OSError):  # no support; a disk error will recur in the normal read
                data = read_direct(self._descriptor, size, offset)
                # After a short read, a normal one tells whether the file ends there.
                if len(data) == size:
                    return data
        data = os.pread(self._descriptor, size, offset)
        while 0 < len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def _cached(self, offset: int, size: int) -> bool:
        """Whether the page cache has the range, judged by its middle byte, without waiting for the
        disk. If it has not, filling the cache would cost more than the rest of the read.
        """
        if _NOWAIT is None:
            return True
        try:
            return bool(os.preadv(self._descriptor, [bytearray(1)], offset + size // 2, _NOWAIT))
        except BlockingIOError:
            return False
        except OSError:  # unknown
            return True

    def fdatasync(self) -> None:
        sync_data(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)
        self._closed()


def write_views(descriptor: int, views: list[memoryview], offset: int) -> None:
    while views:
        written = os.pwritev(descriptor, views[:MAX_PARTS], offset)
        offset += written
        views = drop_front(views, written)


def drop_front(views: list[memoryview], size: int) -> list[memoryview]:
    """The parts that remain to be written after `size` bytes."""
    at = 0
    while at < len(views) and size >= len(views[at]):
        size -= len(views[at])
        at += 1
    rest = views[at:]
    if size:
        rest[0] = rest[0][size:]
    return rest


def sync_data(descriptor: int) -> None:
    """Returns when the file's data, and the size that finds it, are durable. Raises OSError."""
    if _FULL is not None and _synced_fully(descriptor, _FULL):
        return
    if _HAS_FDATASYNC:
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Returns when the names in `folder` are durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _FULL is None or not _synced_fully(descriptor, _FULL):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _synced_fully(descriptor: int, command: int) -> bool:
    """False if the file system cannot."""
    try:
        fcntl.fcntl(descriptor, command)
    except OSError as error:
        if error.errno not in _NO_FULL_SYNC:
            raise
        return False
    return True
