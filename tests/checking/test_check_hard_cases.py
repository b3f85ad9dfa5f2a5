"""`pybroker check` on rare damage, and the losses that its repair reports."""

import contextlib
import errno
import json
import os
from pathlib import Path

import pytest
from test_check import Files, checked, files_of, killed, lay, quiet, stopped

from managed_ledger.storage.embedded.os_disk import OsDisk
from managed_ledger.storage.embedded.overlay_disk import OverlayDisk
from pybroker.checking.main import EXIT_DAMAGED, EXIT_NOT_CHECKED, main

__all__ = ["killed", "quiet", "stopped"]  # fixtures

LARGE_BYTES = 2 * 1024**4  # more than any machine's memory


def damaged_in_the_middle(killed: Files, path: Path) -> Path:
    (journal,) = (name for name in killed if name.startswith("journal/"))
    data = bytearray(killed[journal])
    data[len(data) // 2] ^= 1
    return lay(path, killed | {journal: bytes(data)})


def test_a_repair_says_what_was_lost(
    killed: Files, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = damaged_in_the_middle(killed, tmp_path / "d")
    assert main([str(path), "--repair"]) == 0
    said = capsys.readouterr().out
    assert "lost: everything from offset" in said.partition("repaired: ")[0]
    assert said.endswith("a broker can start again, without the lost data\n")
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.endswith("intact: nothing is damaged\n")


def test_the_json_of_a_repair_has_what_was_lost(
    killed: Files, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = damaged_in_the_middle(killed, tmp_path / "d")
    assert main([str(path), "--repair", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["findings"] == []
    assert "complete commits follow it" in body["before"][0]["lost"]


def test_ledgers_without_any_metadata_are_not_repaired_into_an_empty_directory(
    stopped: Files, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The next start would delete all of them."""
    files = {name: data for name, data in stopped.items() if name.startswith("ledgers/")}
    path = lay(tmp_path / "d", files)
    assert main([str(path), "--repair"]) == EXIT_NOT_CHECKED
    assert "from a backup" in capsys.readouterr().err
    assert files_of(path) == files


def test_a_file_that_the_next_start_would_delete_is_moved_aside_with_a_damaged_journal(
    killed: Files, tmp_path: Path
) -> None:
    path = damaged_in_the_middle(killed, tmp_path / "d")
    (path / "ledgers").mkdir()
    (path / "ledgers/77").write_bytes(b"whatever")
    assert main([str(path), "--repair"]) == 0
    (moved,) = (path / "moved-aside").rglob("77")
    assert moved.read_bytes() == b"whatever"


def test_nobody_is_told_to_move_subscriptions_of_a_coordinators_log(
    stopped: Files, tmp_path: Path
) -> None:
    """Without its log no broker starts, so no cursor could be reset."""
    for name in stopped:
        path = lay(tmp_path / "d", stopped)
        if name.startswith("ledgers/"):
            (path / name).unlink()
            (finding,) = checked(path).damage
            is_topic = finding.lost.endswith(("/orders", "/copies"))
            assert ("reset-cursor" in finding.advice) == is_topic
            assert ("no broker starts" in finding.lost) == ("__transaction_log" in finding.lost)


@pytest.mark.parametrize("file", ["journal", "metadata/snapshot"])
def test_a_file_of_impossible_length_is_damage(file: str, stopped: Files, tmp_path: Path) -> None:
    path = lay(tmp_path / "d", stopped)
    name = next(name for name in stopped if name.startswith(file))
    os.truncate(path / name, LARGE_BYTES)
    (finding,) = checked(path).damage
    assert finding.where == name
    assert main([str(path), "--repair"]) == EXIT_NOT_CHECKED


def test_what_the_disk_cannot_read_is_damage(
    stopped: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lay(tmp_path / "d", stopped)
    unreadable = str(path / "ledgers/0")
    pread = os.pread

    def failing(descriptor: int, size: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}") == unreadable and offset + size > 4096:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", failing)
    found = checked(path).damage
    assert {each.where for each in found} == {"ledgers/0"}
    assert "Input/output error" in found[0].what
    assert found[0].lost.endswith("of public/default/persistent/orders")


def test_a_journal_that_the_disk_cannot_read_is_named(
    killed: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    path = lay(tmp_path / "d", killed)

    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", failing)
    assert main([str(path)]) == EXIT_NOT_CHECKED
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM])
def test_a_repair_copies_where_files_cannot_be_linked_or_moved(
    number: int, killed: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders may be links to other disks, or the file system may lack hard links."""
    path = damaged_in_the_middle(killed, tmp_path / "d")
    before = files_of(path)
    (path / "ledgers").mkdir()
    (path / "ledgers/77").write_bytes(b"whatever")

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(Path, "rename", refused)
    assert main([str(path)]) == EXIT_DAMAGED
    assert main([str(path), "--repair"]) == 0
    (aside,) = (path / "moved-aside").iterdir()
    (journal,) = (name for name in before if name.startswith("journal/"))
    assert files_of(aside) == {journal: before[journal], "ledgers/77": b"whatever"}
    assert not (path / "ledgers/77").exists()


def test_a_report_that_cannot_be_printed_does_not_look_like_damage(
    stopped: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    path = lay(tmp_path / "d", stopped)
    full = open("/dev/full", "w")  # noqa: SIM115
    monkeypatch.setattr("sys.stdout", full)
    assert main([str(path)]) == EXIT_NOT_CHECKED
    assert "cannot be printed" in capsys.readouterr().err
    with contextlib.suppress(OSError):
        full.close()


def test_a_repair_of_what_cannot_be_written_says_so_below_the_report(
    killed: Files,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For example on a read-only file system."""
    path = damaged_in_the_middle(killed, tmp_path / "d")
    files = files_of(path)

    def refuse(disk: OsDisk) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(disk.path / "lock"))

    monkeypatch.setattr(OsDisk, "lock", refuse)
    assert main([str(path), "--repair"]) == EXIT_NOT_CHECKED
    said = capsys.readouterr()
    assert "complete commits follow it" in said.out
    assert "DAMAGED in 1 place" in said.out
    assert "there was nothing to repair" not in said.out
    assert said.err == (
        f"pybroker: not repaired: {path}/lock cannot be written (Read-only file system): make "
        f"{path} writable for this user, or repair a copy\n"
    )
    assert files_of(path) == files
    assert main([str(path)]) == EXIT_DAMAGED


def test_a_directory_of_another_user_is_to_be_checked_by_that_user(
    killed: Files,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = lay(tmp_path / "d", killed)

    def refuse(disk: OverlayDisk) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(disk.path / "lock"))

    monkeypatch.setattr(OverlayDisk, "hold", refuse)
    assert main([str(path)]) == EXIT_NOT_CHECKED
    assert capsys.readouterr().err == (
        f"pybroker: {path}/lock cannot be read (Permission denied): run this as the broker's user\n"
    )
