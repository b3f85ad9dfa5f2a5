"""A disk in memory that fails on request, remembers every operation, and can be copied."""

import errno
from collections.abc import Callable, Sequence

from managed_ledger.errors import DirectoryInUse

Fault = Callable[[str, str], None]  # operation, file name; raises the operation's error


class FaultyDisk:
    """Writes are visible at once; `fault` is called before every operation."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = {name: bytearray(data) for name, data in (files or {}).items()}
        self.operations: list[tuple[str, str]] = []
        self.fault: Fault = lambda operation, name: None
        self.locked = False
        self.open_files = 0
        self.free: Callable[[], int] | None = None

    def contents(self) -> dict[str, bytes]:
        return {name: bytes(data) for name, data in self.files.items()}

    def note(self, operation: str, name: str) -> None:
        self.operations.append((operation, name))
        self.fault(operation, name)

    def create(self, name: str) -> "FaultyFile":
        self.note("create", name)
        if name in self.files:
            raise FileExistsError(errno.EEXIST, "exists", name)
        self.files[name] = bytearray()
        return FaultyFile(self, name)

    def open(self, name: str) -> "FaultyFile":
        self.note("open", name)
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, "missing", name)
        return FaultyFile(self, name)

    def names(self, folder: str) -> list[str]:
        return sorted(name for name in self.files if name.startswith(folder + "/"))

    def rename(self, old: str, new: str) -> None:
        self.note("rename", new)
        self.files[new] = self.files.pop(old)

    def unlink(self, name: str) -> None:
        self.note("unlink", name)
        self.files.pop(name, None)

    def sync_folder(self, folder: str) -> None:
        self.note("sync_folder", folder)

    def free_bytes(self) -> int | None:
        return self.free() if self.free is not None else None

    def lock(self) -> None:
        if self.locked:
            raise DirectoryInUse("in use")
        self.locked = True

    def unlock(self) -> None:
        self.locked = False


class FaultyFile:
    def __init__(self, disk: FaultyDisk, name: str) -> None:
        self._disk = disk
        self._name = name
        self._data = disk.files[name]
        self._is_open = True
        disk.open_files += 1

    def pwritev(self, parts: Sequence[bytes], offset: int) -> None:
        """A failing write still writes half of its data."""
        data = b"".join(parts)
        try:
            self._disk.note("write", self._name)
        except OSError:
            self._put(data[: len(data) // 2], offset)
            raise
        self._put(data, offset)

    def pwritev_uncached(self, parts: Sequence[bytes], offset: int) -> None:
        self.pwritev(parts, offset)

    def pread(self, size: int, offset: int) -> bytes:
        self._disk.note("read", self._name)
        return bytes(self._data[offset : offset + size])

    def fdatasync(self) -> None:
        self._disk.note("fdatasync", self._name)

    def truncate(self, size: int) -> None:
        self._disk.note("truncate", self._name)
        del self._data[size:]

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        assert self._is_open, "it is closed once"
        self._is_open = False
        self._disk.open_files -= 1

    def _put(self, data: bytes, offset: int) -> None:
        self._data.extend(bytes(max(0, offset - len(self._data))))
        self._data[offset : offset + len(data)] = data


def failing(number: int, *operations: tuple[str, str]) -> Fault:
    """A fault that raises this errno in these operations (operation, start of the file name)."""

    def fault(operation: str, name: str) -> None:
        for failing_operation, prefix in operations:
            if operation == failing_operation and name.startswith(prefix):
                raise OSError(number, errno.errorcode[number], name)

    return fault
