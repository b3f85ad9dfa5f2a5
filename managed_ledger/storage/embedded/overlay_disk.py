"""A data directory read from the disk and written to memory: nothing on the disk changes.

An engine that opens one recovers as it would at a start. A shared lock keeps brokers from starting
on the directory meanwhile, and a directory in use by a broker is refused.
"""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from managed_ledger.errors import DirectoryInUse
from managed_ledger.storage.embedded.os_disk import LOCK_FILE


class _Written:
    """A file's bytes: the part of the file on disk that still counts, then the bytes written since.

    The engine writes at the end of files, so little is copied.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._kept = 0 if path is None else path.stat().st_size
        self._tail = bytearray()

    @property
    def size(self) -> int:
        return self._kept + len(self._tail)

    def read(self, size: int, offset: int) -> bytes:
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        found = self._read_kept(offset, min(end, self._kept)) if offset < self._kept else b""
        return found + self._tail[max(0, offset - self._kept) : max(0, end - self._kept)]

    def write(self, data: bytes, offset: int) -> None:
        if offset < self._kept:
            self._tail = bytearray(self._read_kept(offset, self._kept)) + self._tail
            self._kept = offset
        at = offset - self._kept
        self._tail.extend(bytes(max(0, at - len(self._tail))))
        self._tail[at : at + len(data)] = data

    def truncate(self, size: int) -> None:
        self._tail = self._tail[: max(0, size - self._kept)]
        self._kept = min(self._kept, size)

    def _read_kept(self, start: int, end: int) -> bytes:
        assert self._path is not None
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            return os.pread(descriptor, end - start, start)
        except OSError as error:  # the error does not name the file
            raise OSError(error.errno, error.strerror, str(self._path)) from None
        finally:
            os.close(descriptor)


class _File:
    def __init__(self, written: _Written) -> None:
        self._written = written

    def pwritev(self, parts: Sequence[bytes], offset: int) -> None:
        self._written.write(b"".join(parts), offset)

    def pwritev_uncached(self, parts: Sequence[bytes], offset: int) -> None:
        self.pwritev(parts, offset)

    def pread(self, size: int, offset: int) -> bytes:
        return self._written.read(size, offset)

    def fdatasync(self) -> None:
        pass

    def truncate(self, size: int) -> None:
        self._written.truncate(size)

    def size(self) -> int:
        return self._written.size

    def close(self) -> None:
        pass


class OverlayDisk:
    """A Disk. The caller takes the lock with `hold`; an engine's `lock` does nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: int | None = None
        self._changed: dict[str, _Written | None] = {}  # None: unlinked

    def hold(self) -> None:
        """Keep brokers away. Raises DirectoryInUse, NotADirectoryError."""
        if not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is not a directory")
        try:
            held = os.open(self.path / LOCK_FILE, os.O_RDONLY)
        except FileNotFoundError:
            return  # a copy that no broker has used
        try:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            raise DirectoryInUse(
                f"the data directory {self.path} is in use: stop the broker first, or check a copy"
            ) from None
        self._held = held

    def release(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def create(self, name: str) -> _File:
        if self._find(name) is not None:
            raise FileExistsError(name)
        written = self._changed[name] = _Written(None)
        return _File(written)

    def open(self, name: str) -> _File:
        found = self._find(name)
        if found is None:
            raise FileNotFoundError(name)
        self._changed[name] = found
        return _File(found)

    def _find(self, name: str) -> _Written | None:
        if name in self._changed:
            return self._changed[name]
        path = self.path / name
        return _Written(path) if path.is_file() else None

    def names(self, folder: str) -> list[str]:
        on_disk = self.path / folder
        there = (
            {f"{folder}/{each.name}" for each in on_disk.iterdir() if each.is_file()}
            if (on_disk.is_dir())
            else set[str]()
        )
        for name, written in self._changed.items():
            if name.rpartition("/")[0] == folder:
                there.discard(name)
                if written is not None:
                    there.add(name)
        return sorted(there)

    def rename(self, old: str, new: str) -> None:
        self._changed[new] = self._find(old)
        self._changed[old] = None

    def unlink(self, name: str) -> None:
        self._changed[name] = None

    def sync_folder(self, folder: str) -> None:
        pass

    def free_bytes(self) -> int | None:
        return None

    def lock(self) -> None:
        pass

    def unlock(self) -> None:
        pass
