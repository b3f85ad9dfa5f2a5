"""The disk of the operating system: writes in pieces, and incomplete operations."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from managed_ledger.errors import DirectoryInUse
from managed_ledger.storage.embedded import os_disk
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.os_disk import MAX_PARTS, OsDisk, drop_front, sync_folder


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_file_holds_what_was_written_where_it_was_written(tmp_path: Path):
    disk = OsDisk(tmp_path / "data")
    disk.lock()
    before = descriptors()
    file = disk.create("a/b/file")
    file.pwritev([b"hello", b"", b" ", b"world"], 3)
    file.pwritev([b"HE"], 3)
    assert file.size() == 14
    assert file.pread(100, 0) == b"\0\0\0HEllo world"
    assert file.pread(3, 4) == b"Ell"
    assert file.pread(5, 14) == b""
    file.truncate(5)
    file.fdatasync()
    file.close()
    with pytest.raises(FileExistsError):
        disk.create("a/b/file")
    again = disk.open("a/b/file")
    assert again.pread(100, 0) == b"\0\0\0HE"
    again.close()
    assert descriptors() == before
    disk.unlock()


def test_names_are_of_files_in_order_and_of_an_absent_folder_none(tmp_path: Path):
    disk = OsDisk(tmp_path)
    for name in ("f/2", "f/10", "f/sub/x"):
        disk.create(name).close()
    assert disk.names("f") == ["f/10", "f/2"]
    assert disk.names("absent") == []
    disk.rename("f/2", "f/3")
    disk.unlink("f/10")
    disk.unlink("f/10")
    assert disk.names("f") == ["f/3"]


@pytest.mark.parametrize("piece", [1, 2, 3, 7])
def test_a_write_or_a_read_that_comes_in_pieces_is_made_whole(tmp_path, monkeypatch, piece):
    real_write, real_read = os.pwritev, os.pread

    def short_write(descriptor: int, views: list[memoryview], offset: int) -> int:
        return real_write(descriptor, [b"".join(views)[:piece]], offset)

    monkeypatch.setattr(os, "pwritev", short_write)
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real_read(fd, min(size, piece), at))
    file = OsDisk(tmp_path).create("file")
    parts = [b"abc", b"", b"d", b"efghij", b"k"]
    file.pwritev(parts, 2)
    assert file.pread(11, 2) == b"".join(parts)
    assert file.pread(5, 2) == b"".join(parts)[:5]
    assert file.pread(99, 2) == b"".join(parts)  # up to the end of the file
    file.close()


def test_more_parts_than_one_call_takes_are_written_all(tmp_path: Path, monkeypatch):
    real, calls = os.pwritev, []

    def counted(descriptor: int, views: list[memoryview], offset: int) -> int:
        calls.append(len(views))
        return real(descriptor, views, offset)

    monkeypatch.setattr(os, "pwritev", counted)
    file = OsDisk(tmp_path).create("file")
    parts = [b"%04d" % n for n in range(MAX_PARTS + 5)]
    file.pwritev(parts, 0)
    assert calls == [MAX_PARTS, 5]
    assert file.pread(1 << 20, 0) == b"".join(parts)
    file.close()


@given(st.lists(st.binary(min_size=1, max_size=4), max_size=5), st.integers(0, 20))
@example([b"ab", b"cd"], 2)
@example([b"ab", b"cd"], 4)
def test_what_is_left_to_write_is_what_did_not_go_out(parts, size):
    whole = b"".join(parts)
    size = min(size, len(whole))
    left = drop_front([memoryview(part) for part in parts], size)
    assert b"".join(left) == whole[size:]
    assert all(left)


def test_folders_are_synced_from_the_outermost_new_one_on(tmp_path: Path, monkeypatch):
    synced: list[str] = []
    real = sync_folder

    def noted(folder: Path) -> None:
        synced.append(str(folder.relative_to(tmp_path)))
        real(folder)

    monkeypatch.setattr(os_disk, "sync_folder", noted)
    disk = OsDisk(tmp_path / "data")
    disk.create("a/b/file").close()
    assert synced == [".", "data", "data/a"]
    disk.create("a/b/other").close()
    assert synced == [".", "data", "data/a"]
    disk.sync_folder("a/b")
    assert synced[3:] == ["data/a/b"]


def test_a_folder_whose_name_could_not_be_made_to_last_is_made_anew_later(tmp_path, monkeypatch):
    real, failures = sync_folder, [OSError(errno.EIO, "no"), None]

    def failing(folder: Path) -> None:
        failure = failures.pop(0) if failures else None
        if failure is not None:
            raise failure
        real(folder)

    monkeypatch.setattr(os_disk, "sync_folder", failing)
    disk = OsDisk(tmp_path)
    with pytest.raises(OSError, match="no") as refused:
        disk.create("a/file")
    assert refused.value.errno == errno.EIO
    assert not (tmp_path / "a").exists()
    disk.create("a/file").close()
    assert disk.names("a") == ["a/file"]


def test_a_sync_of_a_folder_leaves_no_descriptor_open(tmp_path: Path):
    before = descriptors()
    sync_folder(tmp_path)
    assert descriptors() == before
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "absent")


def test_a_directory_is_one_process_s_until_it_lets_go(tmp_path: Path):
    before = descriptors()
    first, second = OsDisk(tmp_path / "data"), OsDisk(tmp_path / "data")
    first.lock()
    held = descriptors()
    with pytest.raises(DirectoryInUse, match="another process"):
        second.lock()
    assert descriptors() == held
    first.unlock()
    first.unlock()
    second.lock()
    second.unlock()
    assert descriptors() == before


@pytest.mark.parametrize("refusal", [errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS])
def test_the_names_of_folders_that_are_there_are_made_to_last(
    tmp_path: Path, monkeypatch, refusal: int
):
    """The process that created them may have been killed before it synced them. The parent of the
    data directory may belong to another user or to a read-only file system; the engine starts
    anyway.
    """
    (tmp_path / "data" / "journal").mkdir(parents=True)
    real, synced = sync_folder, []

    def sync(folder: Path) -> None:
        synced.append(folder)
        if folder == tmp_path:
            raise OSError(refusal, "not ours")
        real(folder)

    monkeypatch.setattr(os_disk, "sync_folder", sync)
    disk = OsDisk(tmp_path / "data")
    disk.lock()
    assert set(synced) == {tmp_path, tmp_path / "data"}
    disk.unlock()


@pytest.mark.parametrize("broken", [".", "data"])
def test_a_directory_whose_names_cannot_be_synced_is_let_go(
    tmp_path: Path, monkeypatch, broken: str
):
    (tmp_path / "data").mkdir()
    before = descriptors()
    real = sync_folder

    def fails(folder: Path) -> None:
        if folder == tmp_path / broken:
            raise OSError(errno.EIO, "broken")
        real(folder)

    monkeypatch.setattr(os_disk, "sync_folder", fails)
    with pytest.raises(OSError, match="broken"):
        OsDisk(tmp_path / "data").lock()
    assert descriptors() == before


def test_files_are_for_their_owner_and_group(tmp_path: Path):
    disk = OsDisk(tmp_path / "data")
    disk.lock()
    disk.create("f/file").close()
    umask = os.umask(0)
    os.umask(umask)
    for name in ("f/file", "lock"):
        assert (disk.path / name).stat().st_mode & 0o777 == 0o640 & ~umask
    disk.unlock()


def test_a_folder_that_another_process_makes_meanwhile_is_used(tmp_path: Path, monkeypatch):
    real = os_disk.OsDisk._make_folder

    def made_meanwhile(disk: OsDisk, folder: Path) -> None:
        if folder == tmp_path:  # synced when `f` was missing
            (tmp_path / "f").mkdir()
        real(disk, folder)

    monkeypatch.setattr(os_disk.OsDisk, "_make_folder", made_meanwhile)
    OsDisk(tmp_path).create("f/file").close()
    assert (tmp_path / "f" / "file").exists()


@pytest.mark.parametrize("operation", ["close", "sync_folder"])
def test_a_descriptor_that_was_given_up_is_taken_back_when_there_is_one(tmp_path: Path, operation):
    disk = OsDisk(tmp_path)
    disk.lock()
    spare = len(disk._spare._spare)
    file = disk.create("f/file")
    assert spare > 1
    assert disk._spare._give_up_one()
    file.close() if operation == "close" else disk.sync_folder("f")
    assert len(disk._spare._spare) == spare
    disk.unlock()


def test_free_bytes_exclude_those_reserved_for_root(tmp_path: Path, monkeypatch):
    class Found:
        f_bavail, f_frsize, f_bfree, f_bsize = 7, 1024, 99, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Found())
    assert OsDisk(tmp_path).free_bytes() == 7 * 1024


def test_unknown_free_bytes_do_not_stop_writing(run, clock, tmp_path: Path, monkeypatch):
    """The loop asks between two commits: an error there would be lost, and the commit with it."""

    def fails(path: object) -> None:
        raise OSError(errno.ESTALE, "stale file handle")

    async def scenario() -> None:
        backend = EmbeddedBackend(OsDisk(tmp_path), clock)
        await backend.open()
        monkeypatch.setattr(os, "statvfs", fails)
        assert OsDisk(tmp_path).free_bytes() is None
        assert await backend.metadata.put("key", b"value") == 0
        await backend.close()

    run(scenario())
