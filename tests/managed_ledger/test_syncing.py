"""Which call of the operating system makes bytes and names durable, on Linux and on macOS."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from managed_ledger.storage.embedded import os_disk
from managed_ledger.storage.embedded.os_disk import OsDisk

F_FULLFSYNC = 51  # of macOS


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The syncs, and the inode of each one's file or folder."""
    made = list[tuple[str, int]]()

    def noted(name: str) -> object:
        return lambda descriptor, *_: made.append((name, os.fstat(descriptor).st_ino))

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, noted(name), raising=False)
    real = fcntl.fcntl

    def control(descriptor: int, command: int, *more: int) -> object:
        if command != F_FULLFSYNC:
            return real(descriptor, command, *more)
        return made.append(("F_FULLFSYNC", os.fstat(descriptor).st_ino))

    monkeypatch.setattr(fcntl, "fcntl", control)
    return made


def sync_both(folder: Path) -> tuple[int, int]:
    """The inodes of the file and of its folder."""
    disk = OsDisk(folder)
    file = disk.create("file")
    file.fdatasync()
    disk.sync_folder(".")
    file.close()
    return (folder / "file").stat().st_ino, folder.stat().st_ino


@pytest.mark.parametrize(("has_fdatasync", "of_file"), [(True, "fdatasync"), (False, "fsync")])
def test_a_file_is_synced_without_its_times_where_that_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls, has_fdatasync: bool, of_file: str
) -> None:
    monkeypatch.setattr(os_disk, "_FULL", None)
    monkeypatch.setattr(os_disk, "_HAS_FDATASYNC", has_fdatasync)
    file, folder = sync_both(tmp_path)
    assert calls == [(of_file, file), ("fsync", folder)]


def test_on_macos_a_sync_empties_the_drives_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls
) -> None:
    monkeypatch.setattr(os_disk, "_FULL", F_FULLFSYNC)
    file, folder = sync_both(tmp_path)
    assert calls == [("F_FULLFSYNC", file), ("F_FULLFSYNC", folder)]


def test_a_share_without_it_gets_what_it_has_and_an_error_of_the_drive_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls
) -> None:
    def refused(number: int) -> object:
        def control(descriptor: int, command: int) -> None:
            raise OSError(number, os.strerror(number))

        return control

    monkeypatch.setattr(os_disk, "_FULL", F_FULLFSYNC)
    monkeypatch.setattr(os_disk, "_HAS_FDATASYNC", False)
    monkeypatch.setattr(fcntl, "fcntl", refused(errno.ENOTSUP))
    file, folder = sync_both(tmp_path)
    assert calls == [("fsync", file), ("fsync", folder)]
    monkeypatch.setattr(fcntl, "fcntl", refused(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        os_disk.sync_folder(tmp_path)
