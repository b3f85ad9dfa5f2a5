"""Ledgers that belong to no managed ledger, for tests of what is below."""

from managed_ledger.cursor import ManagedCursor
from managed_ledger.storage.backend import Backend


async def make_ledger(backend: Backend) -> int:
    """A ledger is made with a key; that of this one goes at once."""
    ledger_id = backend.new_ledger_id()
    made = backend.metadata.put("made", b"", new_ledger_id=ledger_id)
    await backend.metadata.delete("made")
    await made
    return ledger_id


def acknowledged_behind(cursor: ManagedCursor) -> int:
    """How many entries behind the mark-delete position are acknowledged one by one."""
    index, mark = cursor._index, cursor.mark_delete_position
    return index.count_between(mark, index.last_confirmed) - cursor.backlog(index.last_confirmed)
