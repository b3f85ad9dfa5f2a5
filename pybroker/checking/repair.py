"""Makes a damaged directory start again by moving aside the files that prevent it.

Nothing is deleted. Moved files are in the directory's folder `moved-aside/<time>/`. A journal that
is damaged in the middle is moved, and a new one begins with the part before the damage: everything
after the damage is lost to the broker.
"""

import errno
import os
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.embedded import snapshot
from managed_ledger.storage.embedded.journal_replay import Replay
from managed_ledger.storage.embedded.journal_writer import FOLDER as JOURNALS
from managed_ledger.storage.embedded.journal_writer import generations, journal_name
from managed_ledger.storage.embedded.ledger_files import ledger_file_name, ledger_ids
from managed_ledger.storage.embedded.os_disk import OsDisk, sync_folder

FOLDER: Final = "moved-aside"
# A folder may be a link to another disk, and some file systems have no hard links.
_COPY_INSTEAD: Final = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


def repair(path: Path) -> list[str]:
    """Returns what was done, as clauses. Raises DirectoryInUse, NewerFormat, OSError;
    CorruptStorage if only a backup helps.
    """
    disk = OsDisk(path)
    disk.lock()
    try:
        return _Repair(path, disk).run()
    finally:
        disk.unlock()


class _Repair:
    def __init__(self, path: Path, disk: OsDisk) -> None:
        self._path = path
        self._disk = disk
        self._aside = path / FOLDER / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self._done: list[str] = []

    def run(self) -> list[str]:
        replay = Replay(self._disk)
        try:
            replay.replay()
        except CorruptStorage:
            if replay.found is None and self._lacks_snapshot(replay):
                raise  # the contents of other files are unknown
            self._cut_journals(replay)
            replay = Replay(self._disk)
            replay.replay()
        self._move_leftovers(replay)
        return self._done

    def _lacks_snapshot(self, replay: Replay) -> bool:
        """Whether the snapshot is damaged, or both the snapshot and the beginning of the journals
        are missing. The next start would then delete all ledgers.
        """
        is_missed = replay.first_generation not in generations(self._disk)
        return is_missed or bool(self._disk.names(snapshot.FOLDER))

    def _cut_journals(self, replay: Replay) -> None:
        """Makes the next start replay everything before the damage, and nothing after it."""
        corrupt, present = replay.corrupt, generations(self._disk)
        if corrupt is not None:
            good = (self._path / corrupt.name).read_bytes()[: corrupt.at]
            self._move(later for later in present if later > corrupt.generation)
            self._cut(corrupt.name, good)
            return
        expected = replay.first_generation
        while expected in present:
            expected += 1
        self._move(later for later in present if later > expected)
        if expected == replay.first_generation:
            self._write_journal(expected, b"")

    def _move(self, journals: Iterable[int]) -> None:
        for generation in journals:
            self._move_file(journal_name(generation))

    def _cut(self, name: str, good: bytes) -> None:
        """Keeps the intact part. Atomic: after a crash there is either the damaged journal or its
        intact part.
        """
        target = self._target(name)
        try:
            os.link(self._path / name, target)
        except OSError as error:
            if error.errno not in _COPY_INSTEAD:
                raise
            _copy(self._path / name, target)
        self._moved(name, target)
        self._disk.unlink(f"{name}.cut")  # from a repair that crashed
        new = self._disk.create(f"{name}.cut")
        try:
            new.pwritev([good], 0)
            new.fdatasync()
        finally:
            new.close()
        self._disk.rename(f"{name}.cut", name)
        self._disk.sync_folder(JOURNALS)
        self._done.append(f"{name} truncated to {len(good)} bytes")

    def _write_journal(self, generation: int, data: bytes) -> None:
        file = self._disk.create(journal_name(generation))
        try:
            file.pwritev([data], 0)
            file.fdatasync()
        finally:
            file.close()
        self._disk.sync_folder(JOURNALS)
        self._done.append(f"{journal_name(generation)} created again, with {len(data)} bytes")

    def _move_leftovers(self, replay: Replay) -> None:
        """Moves files of unknown ledgers: the next start would delete them."""
        for ledger_id in ledger_ids(self._disk):
            if ledger_id not in replay.ledgers:
                self._move_file(ledger_file_name(ledger_id))

    def _move_file(self, name: str) -> None:
        target = self._target(name)
        try:
            (self._path / name).rename(target)
        except OSError as error:
            if error.errno not in _COPY_INSTEAD:
                raise
            _copy(self._path / name, target)
            self._disk.unlink(name)
        self._moved(name, target)

    def _target(self, name: str) -> Path:
        target = self._aside / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def _moved(self, name: str, target: Path) -> None:
        for folder in (target.parent, self._aside, self._aside.parent, (self._path / name).parent):
            sync_folder(folder)
        self._done.append(f"{name} moved to {target.relative_to(self._path)}")


def _copy(source: Path, target: Path) -> None:
    """The content is durable when this returns, the name is not."""
    shutil.copy2(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
