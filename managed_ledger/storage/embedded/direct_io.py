"""Bulk writes and reads that bypass the page cache.

For a large write, the page cache (fresh pages, a copy into cold memory, writeback) costs more than
the disk. So the whole blocks in the middle of a large write go straight to the file, from a reused
buffer that stays in the CPU's cache. The bytes before and after these blocks are written normally,
so no block is padded and the file is the same, byte for byte. Either way data is durable only once
synced. If the file system lacks support, the first write finds out, and the writer stops trying.
Reads through the page cache need fresh pages, too, so large reads use the same buffers.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from typing import Final

BLOCK_BYTES: Final = max(4096, PAGESIZE)  # alignment of offsets, sizes and memory
LEAST_BYTES: Final = 256 * 1024  # smaller writes are not worth an extra wait for the disk
BUFFER_BYTES: Final = 1024 * 1024
BUFFERS_KEPT: Final = 2  # one for the journal, one for a ledger's file
_FLAG: Final = getattr(os, "O_DIRECT", 0)

Views = list[memoryview]
_free_buffers: list[memoryview] = []  # already used, so their memory is mapped


class DirectWriter:
    """Writes to one file, by one thread at a time; `write_cached` writes through the page cache."""

    def __init__(self, descriptor: int, write_cached: Callable[[Views, int], None]) -> None:
        self._descriptor = descriptor
        self._write_cached = write_cached
        self._supported = bool(_FLAG)

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        """Raises OSError; any part may have been written by then."""
        rest = [memoryview(part) for part in parts if part]
        end = offset + sum(map(len, rest))
        first, last = -(-offset // BLOCK_BYTES) * BLOCK_BYTES, end // BLOCK_BYTES * BLOCK_BYTES
        if not self._supported or last - first < LEAST_BYTES:
            self._write_cached(rest, offset)
            return
        self._write_cached(take_front(rest, first - offset), offset)
        self._write_blocks(take_front(rest, last - first), first)
        self._write_cached(rest, last)

    def _write_blocks(self, views: Views, offset: int) -> None:
        with _buffer() as buffer:
            while views:
                piece = gather(take_front(views, BUFFER_BYTES), buffer)
                written = self._write_piece(piece, offset)
                if written < len(piece):  # raises the reason, if there is one
                    self._write_cached([piece[written:]], offset + written)
                offset += len(piece)

    def _write_piece(self, piece: memoryview, offset: int) -> int:
        """The number of bytes written."""
        if not self._supported:
            return 0
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | _FLAG)
            return os.pwrite(self._descriptor, piece, offset)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self._supported = False
            return 0
        finally:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags)


def read_direct(descriptor: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes; fewer at the end of the file or if the system returned fewer. Nothing
    else may use the descriptor meanwhile. Raises OSError, also if the file system lacks support.
    """
    at = offset // BLOCK_BYTES * BLOCK_BYTES
    skip, end = offset - at, offset + size
    parts: list[bytes] = []
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _FLAG)
    try:
        with _buffer() as buffer:
            while at < end:
                wanted = min(BUFFER_BYTES, -(-(end - at) // BLOCK_BYTES) * BLOCK_BYTES)
                read = os.preadv(descriptor, [buffer[:wanted]], at)
                parts.append(bytes(buffer[skip : min(read, end - at)]))
                if read < wanted:
                    break
                at, skip = at + read, 0
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return b"".join(parts)


@contextmanager
def _buffer() -> Iterator[memoryview]:
    """A buffer of aligned memory for this thread alone."""
    try:
        buffer = _free_buffers.pop()
    except IndexError:
        buffer = memoryview(mmap(-1, BUFFER_BYTES, MAP_PRIVATE | MAP_ANONYMOUS))
    try:
        yield buffer
    finally:
        if len(_free_buffers) < BUFFERS_KEPT:
            _free_buffers.append(buffer)


def gather(views: Views, buffer: memoryview) -> memoryview:
    at = 0
    for view in views:
        buffer[at : at + len(view)] = view
        at += len(view)
    return buffer[:at]


def take_front(views: Views, size: int) -> Views:
    """The first `size` bytes, or all; `views` keeps the rest."""
    front: Views = []
    while views and size >= len(views[0]):
        size -= len(views[0])
        front.append(views.pop(0))
    if views and size:
        front.append(views[0][:size])
        views[0] = views[0][size:]
    return front
