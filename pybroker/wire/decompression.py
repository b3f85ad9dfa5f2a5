"""Decompresses payloads. zlib is always available, other codecs if their library is installed."""

import importlib
import zlib
from collections.abc import Iterator
from typing import Any, Final

_NONE, _LZ4, _ZLIB, _ZSTD, _SNAPPY = range(5)  # CompressionType on the wire
_PACKAGES: Final = {_LZ4: "lz4", _ZSTD: "zstandard", _SNAPPY: "python-snappy"}
INSTALL: Final = "pip install 'pybroker[compression]'"
MAX_BYTES: Final = 64 * 1024 * 1024
PART_BYTES: Final = 1024 * 1024
_MAX_WHOLE_BYTES: Final = 16 * 1024 * 1024  # for codecs that only decompress in one piece


class CannotDecompress(ValueError):
    """The message says why, and what to do."""


def decompressed(compression: int, payload: bytes, size: int) -> bytes:
    """`size` is the result's size according to the metadata. Raises CannotDecompress."""
    if compression == _NONE:
        return payload
    if size > MAX_BYTES:
        raise CannotDecompress(f"it claims {size} bytes; the limit for display is {MAX_BYTES}")
    try:
        plain = _decompressed(compression, payload, size)
    except ImportError:
        raise _missing(compression) from None
    except CannotDecompress:
        raise
    except Exception as error:  # each library has its own errors
        raise CannotDecompress(f"it does not decompress: {error}") from error
    if len(plain) != size:
        raise _wrong_size(size)
    return plain


def in_parts(compression: int, payload: bytes, size: int) -> Iterator[bytes]:
    """Like `decompressed`, but in pieces, so that other work can run in between. The limit is lower
    for codecs that only decompress in one piece.
    """
    if compression not in (_ZLIB, _ZSTD):
        if compression != _NONE and size > _MAX_WHOLE_BYTES:
            raise CannotDecompress(f"it claims {size} bytes; the limit is {_MAX_WHOLE_BYTES}")
        yield decompressed(compression, payload, size)
        return
    if size > MAX_BYTES:
        raise CannotDecompress(f"it claims {size} bytes; the limit is {MAX_BYTES}")
    found = 0
    for part in _parts_of_zlib(payload) if compression == _ZLIB else _parts_of_zstd(payload):
        found += len(part)
        if found > size:
            break
        yield part
    if found != size:
        raise _wrong_size(size)


def _parts_of_zlib(payload: bytes) -> Iterator[bytes]:
    rest = zlib.decompressobj()
    try:
        while part := rest.decompress(payload, PART_BYTES):
            yield part
            payload = rest.unconsumed_tail
    except zlib.error as error:
        raise CannotDecompress(f"it does not decompress: {error}") from error


def _parts_of_zstd(payload: bytes) -> Iterator[bytes]:
    try:
        library: Any = importlib.import_module(_PACKAGES[_ZSTD])
    except ImportError:
        raise _missing(_ZSTD) from None
    try:
        with library.ZstdDecompressor().stream_reader(payload) as reader:
            while part := reader.read(PART_BYTES):
                yield part
    except library.ZstdError as error:
        raise CannotDecompress(f"it does not decompress: {error}") from error


def _decompressed(compression: int, payload: bytes, size: int) -> bytes:
    if compression == _ZLIB:
        return zlib.decompressobj().decompress(payload, size + 1)
    found: Any
    if compression == _LZ4:
        found = importlib.import_module("lz4.block")
        return bytes(found.decompress(payload, uncompressed_size=size))
    if compression == _ZSTD:
        return zstd_decompressed(payload, size)
    if compression == _SNAPPY:
        return snappy_decompressed(payload, size)
    raise CannotDecompress(f"unknown compression {compression}")


def _missing(compression: int) -> CannotDecompress:
    return CannotDecompress(f"the broker needs the package {_PACKAGES[compression]}: {INSTALL}")


def _wrong_size(size: int) -> CannotDecompress:
    return CannotDecompress(f"it does not decompress to the {size} bytes that it claims")


def zstd_decompressed(payload: bytes, size: int) -> bytes:
    """The result, cut off at most PART_BYTES beyond `size`: the sender declared that size, so it is
    not trusted. Raises CannotDecompress.
    """
    found = bytearray()
    for part in _parts_of_zstd(payload):
        found += part
        if len(found) > size:
            break
    return bytes(found)


def snappy_decompressed(payload: bytes, size: int) -> bytes:
    """Raises CannotDecompress, ImportError, and the library's own errors."""
    library: Any = importlib.import_module("snappy")
    if _size_for_snappy(payload) != size:
        raise _wrong_size(size)
    return bytes(library.decompress(payload))


def _size_for_snappy(payload: bytes) -> int:
    """How many bytes the library will allocate: the varint at the start of the payload."""
    size = 0
    for shift, byte in enumerate(payload[:5]):
        size |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            break
    return size
