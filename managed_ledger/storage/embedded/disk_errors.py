"""Translates an OSError: the disk is full, descriptors ran out, or the disk failed."""

import errno
from typing import Final

from managed_ledger.errors import ManagedLedgerError, NoDescriptors, StorageFailed, StorageFull

NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


def is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in NO_SPACE


def is_out_of_descriptors(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in NO_DESCRIPTORS


def translated(error: Exception, name: str) -> ManagedLedgerError:
    """The error of a write. A write refused for lack of space or descriptors did not happen."""
    if is_full(error):
        return StorageFull(
            f"no space left to write {name}; free some space. Nothing was lost ({error})"
        )
    return unreadable(error, name)


def unreadable(error: Exception, name: str) -> ManagedLedgerError:
    """The error of reading or opening a file."""
    if is_out_of_descriptors(error):
        return NoDescriptors(
            f"no file descriptor left to open {name}; close connections, or raise the limit on "
            f"open files (ulimit -n). Nothing was lost ({error})"
        )
    return failed(error, name)


def failed(error: Exception, name: str) -> StorageFailed:
    """The error of a sync, for any reason: after a failed sync the disk's contents are unknown."""
    return StorageFailed(
        f"the disk failed on {name} ({error}): its contents are known only after a restart; check "
        "the disk, then start again"
    )
