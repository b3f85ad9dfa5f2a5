"""Tunes malloc for blocks of some hundred kilobytes that are allocated and freed all the time.

Large entries stay in memory until two checkpoints later, and batches are joined for sending. By
default, glibc returns such memory to the system each time and gets it back page by page, which
costs as much as copying the entries. So blocks of up to `LARGE_BYTES` come from the heap, of which
up to `KEPT_BYTES` stay allocated when free. Other allocators are not changed.
"""

import ctypes
from typing import Final

LARGE_BYTES: Final = 4 * 1024 * 1024
KEPT_BYTES: Final = 64 * 1024 * 1024
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_memory_at_hand() -> bool:
    """Tune malloc; False if this allocator cannot be tuned."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
