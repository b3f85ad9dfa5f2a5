"""What an OSError means to callers: the disk is full, or it failed."""

import errno
from typing import Final

from managed_ledger.errors import ManagedLedgerError, StorageFailed, StorageFull

NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in NO_SPACE


def translated(error: Exception, name: str) -> ManagedLedgerError:
    """Of a write: one refused for lack of space did not happen."""
    if is_full(error):
        return StorageFull(f"no space left to write {name}; free some, nothing was lost ({error})")
    return failed(error, name)


def failed(error: Exception, name: str) -> StorageFailed:
    """Of a sync or a read, whatever the reason: after a failed sync nothing is known."""
    return StorageFailed(
        f"the disk failed on {name} ({error}): what it holds is known again only after a restart; "
        "check the disk, then start again"
    )
