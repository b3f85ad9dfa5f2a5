"""How the process treats memory that comes and goes in pieces of some hundred kilobytes.

Large entries stay in memory until two checkpoints later, and batches are joined to be sent. By
default glibc gives such memory back to the system each time, and gets it again page by page, which
costs as much as copying the entries does. So pieces up to `LARGE_BYTES` come from memory at hand,
of which up to `KEPT_BYTES` stay when they are free. Allocators without such numbers are let alone.
"""

import ctypes
from typing import Final

LARGE_BYTES: Final = 4 * 1024 * 1024
KEPT_BYTES: Final = 64 * 1024 * 1024
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_memory_at_hand() -> bool:
    """False: this allocator cannot be told."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
