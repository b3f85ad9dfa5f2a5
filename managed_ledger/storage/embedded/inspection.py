"""Verifies every checksum of a data directory, without changing it.

A start reads the snapshot and the journals, but only checks the sizes of the ledgers' files. An
inspection also reads all ledger files, block by block.
"""

from collections.abc import Iterator
from typing import Final

from managed_ledger.errors import CorruptStorage, NewerFormat
from managed_ledger.findings import Finding, note
from managed_ledger.storage.embedded import snapshot
from managed_ledger.storage.embedded.disk import Disk, DiskFile
from managed_ledger.storage.embedded.journal_replay import Replay
from managed_ledger.storage.embedded.journal_writer import FOLDER as JOURNALS
from managed_ledger.storage.embedded.journal_writer import generations, journal_name
from managed_ledger.storage.embedded.ledger_files import (
    FOLDER,
    HEADER_BYTES,
    FlushedPart,
    decode_block,
    decode_header,
    ledger_file_name,
    ledger_ids,
)
from managed_ledger.storage.engine_state import LedgerState

_BACKUP: Final = "Restore the data directory from a backup."


def inspect(disk: Disk) -> tuple[Replay, list[Finding]]:
    """The state that a start would find, as far as it can be read, and the findings."""
    replay = Replay(disk)
    findings: list[Finding] = []
    try:
        replay.replay()
    except NewerFormat as error:
        return replay, [Finding(snapshot.NAME, str(error))]
    except CorruptStorage as error:
        findings.append(_stopped(replay, error))
    findings += _notes(disk, replay)
    if replay.found is None and findings:
        findings += _files_by_themselves(disk)
    else:
        for state in replay.ledgers.values():
            findings += _of_file(disk, state)
    return replay, findings


def _stopped(replay: Replay, error: CorruptStorage) -> Finding:
    corrupt = replay.corrupt
    if corrupt is None:
        where = str(error).partition(" ")[0]
        lost = "everything in it and in later journals; " if where.startswith(JOURNALS) else ""
        return Finding(where, str(error), f"{lost}the broker does not start", _BACKUP)
    behind = corrupt.good_frames_behind()
    later = [each for each in replay.journals if each > corrupt.generation]
    lost = f"everything from offset {corrupt.at} on: {behind} complete commits follow it"
    if later:
        lost += f", and {len(later)} later journals"
    return Finding(corrupt.name, str(error), lost, _BACKUP)


def _notes(disk: Disk, replay: Replay) -> Iterator[Finding]:
    if replay.torn is not None:
        yield note(
            journal_name(replay.journals[-1]),
            f"ends in {replay.torn.lost_bytes} bytes of a write that did not complete, at offset "
            f"{replay.torn.offset}, as after a crash, or in a truncated file",
        )
    if replay.complete and replay.found is None and replay.journals:
        yield note(
            snapshot.NAME, "is missing; the journals contain everything from the beginning on"
        )
    for generation in generations(disk):
        if generation < replay.first_generation:
            yield note(journal_name(generation), "is no longer needed")
    for name in disk.names(JOURNALS):
        if name not in map(journal_name, generations(disk)):
            yield note(name, "is not a journal and is ignored")
    if replay.found is not None:
        for ledger_id in ledger_ids(disk):
            if ledger_id not in replay.ledgers:
                yield note(ledger_file_name(ledger_id), "belongs to no ledger")


def _of_file(disk: Disk, state: LedgerState) -> Iterator[Finding]:
    """Check the file of a ledger in the snapshot."""
    flushed, name = state.flushed, ledger_file_name(state.ledger_id)
    if not flushed.file_bytes:
        return
    try:
        file = disk.open(name)
    except FileNotFoundError:
        state.note_damage(0, flushed.entries - 1)
        yield _unreadable(state.ledger_id, "is missing", 0, flushed.entries - 1)
        return
    try:
        for what, first, last in _bad_blocks(file, state.ledger_id, flushed):
            state.note_damage(first, last)
            yield _unreadable(state.ledger_id, what, first, last)
    finally:
        file.close()


def _unreadable(ledger_id: int, what: str, first: int, last: int) -> Finding:
    return Finding(
        ledger_file_name(ledger_id),
        what,
        f"entries {first} to {last} of ledger {ledger_id}",
        "Restore the data directory from a backup, or move subscriptions past it "
        "(`pybroker admin topics reset-cursor`).",
    )


def _bad_blocks(
    file: DiskFile, ledger_id: int, flushed: FlushedPart
) -> Iterator[tuple[str, int, int]]:
    """Each damage, with the lost entries. After a bad header nothing more can be found."""
    name, offset, next_entry_id = ledger_file_name(ledger_id), 0, 0
    while offset < flushed.file_bytes:
        last = flushed.entries - 1
        try:
            _, first, count, body_bytes, _ = decode_header(
                file.pread(HEADER_BYTES, offset), 0, ledger_id, name, offset
            )
        except (CorruptStorage, OSError) as error:
            yield f"has a damaged header at offset {offset}{_why(error)}", next_entry_id, last
            return
        end = offset + HEADER_BYTES + body_bytes
        if first != next_entry_id or end > flushed.file_bytes:
            yield f"continues with entry {first} at offset {offset}", next_entry_id, last
            return
        try:
            decode_block(file.pread(end - offset, offset), 0, ledger_id, name, offset)
        except (CorruptStorage, OSError) as error:
            if count:  # otherwise the block is a placeholder for damage that was already reported
                what = f"has a damaged block at offset {offset}{_why(error)}"
                yield what, first, first + count - 1
        next_entry_id, offset = first + count, end
    if next_entry_id != flushed.entries:
        yield f"ends with entry {next_entry_id - 1}", next_entry_id, flushed.entries - 1


def _why(error: Exception) -> str:
    """The reason why the disk cannot read the file. Raises PermissionError, which is no damage."""
    if isinstance(error, PermissionError):
        raise error
    return f": {error.strerror}" if isinstance(error, OSError) else ""


def _files_by_themselves(disk: Disk) -> Iterator[Finding]:
    """Check the ledger files without a snapshot, which would tell how much of each file counts."""
    for ledger_id in ledger_ids(disk):
        file = disk.open(ledger_file_name(ledger_id))
        try:
            readable, size = _readable_bytes(file, ledger_id), file.size()
        finally:
            file.close()
        if readable < size:
            yield note(
                f"{FOLDER}/{ledger_id}", f"can be read up to offset {readable} of {size} bytes"
            )


def _readable_bytes(file: DiskFile, ledger_id: int) -> int:
    name, offset, size = ledger_file_name(ledger_id), 0, file.size()
    while offset < size:
        try:
            *_, body_bytes, _ = decode_header(
                file.pread(HEADER_BYTES, offset), 0, ledger_id, name, offset
            )
            end = offset + HEADER_BYTES + body_bytes
            decode_block(file.pread(min(end, size) - offset, offset), 0, ledger_id, name, offset)
        except (CorruptStorage, OSError) as error:
            _why(error)
            break
        offset = end
    return offset
