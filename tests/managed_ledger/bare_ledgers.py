"""Ledgers without a managed ledger, engines over a test's disk, and the entries of a log."""

from typing import Any

from managed_ledger.cursor import ManagedCursor
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.storage.backend import Backend
from managed_ledger.storage.embedded.disk import Disk
from managed_ledger.storage.embedded.journal import EmbeddedBackend


async def opened(disk: Disk, clock: Any, **options: Any) -> EmbeddedBackend:
    backend = EmbeddedBackend(disk, clock, **options)
    await backend.open()
    return backend


async def checkpointed(backend: EmbeddedBackend) -> None:
    """Wait for one run of the background work that begins now. A test that ran it itself would do
    so beside the background task, which never happens otherwise.
    """
    checkpoints = backend._checkpoints
    for _ in range(2):  # the first may have begun earlier
        checkpoints._progress.clear()
        checkpoints.wake()
        await checkpoints._progress.wait()


async def read_all(
    ledger: ManagedLedger, position: Position = EARLIEST, up_to: Position = LATEST
) -> list[bytes]:
    found: list[bytes] = []
    while (run := await ledger.read(position, up_to, 100, 1 << 20)) is not None:
        found += run.entries
        position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
    return found


async def make_ledger(backend: Backend) -> int:
    """A ledger can only be created together with a key; this key is deleted at once."""
    ledger_id = backend.new_ledger_id()
    made = backend.metadata.put("made", b"", new_ledger_id=ledger_id)
    await backend.metadata.delete("made")
    await made
    return ledger_id


def acknowledged_behind(cursor: ManagedCursor) -> int:
    """The number of individually acknowledged entries after the mark-delete position."""
    index, mark = cursor._index, cursor.mark_delete_position
    return index.count_between(mark, index.last_confirmed) - cursor.backlog(index.last_confirmed)
