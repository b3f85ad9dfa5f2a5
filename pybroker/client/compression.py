"""Codecs by wire number. zlib is always available, the others if their library is installed.

LZ4 is the block format without a size prefix (MessageMetadata contains the size).
"""

import importlib
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pybroker.client.errors import UnsupportedCompression
from pybroker.client.options import CompressionType
from pybroker.wire.decompression import INSTALL, snappy_decompressed, zstd_decompressed


class Codec(NamedTuple):
    compress: Callable[[bytes], bytes]
    # The second argument is the size of the result.
    decompress: Callable[[bytes, int], bytes]


def _plain() -> Codec:
    return Codec(lambda data: data, lambda data, size: data)


def _zlib() -> Codec:
    return Codec(
        zlib.compress, lambda data, size: zlib.decompressobj().decompress(data, max(size, 1))
    )


def _lz4() -> Codec:
    block: Any = importlib.import_module("lz4.block")
    return Codec(
        lambda data: block.compress(data, store_size=False),
        lambda data, size: block.decompress(data, uncompressed_size=size),
    )


def _zstd() -> Codec:
    zstandard: Any = importlib.import_module("zstandard")
    return Codec(
        lambda data: zstandard.ZstdCompressor().compress(data),
        zstd_decompressed,
    )


def _snappy() -> Codec:
    snappy: Any = importlib.import_module("snappy")
    return Codec(snappy.compress, snappy_decompressed)


_LIBRARIES: Final = {
    CompressionType.NONE: (_plain, ""),
    CompressionType.ZLib: (_zlib, ""),
    CompressionType.LZ4: (_lz4, "lz4"),
    CompressionType.ZSTD: (_zstd, "zstandard"),
    CompressionType.SNAPPY: (_snappy, "python-snappy"),
}
_loaded: Final[dict[int, Codec]] = {}


def codec(compression: int) -> Codec:
    """Raises UnsupportedCompression if the codec's package is not installed; the error names it."""
    found = _loaded.get(compression)
    if found is None:
        found = _loaded[compression] = _load(compression)
    return found


def packed(content: bytes, compression: CompressionType) -> tuple[bytes, CompressionType]:
    """The payload and its compression type; uncompressed if compressing would make it longer."""
    found = codec(compression).compress(content)
    return (found, compression) if len(found) < len(content) else (content, CompressionType.NONE)


def _load(compression: int) -> Codec:
    try:
        kind = CompressionType(compression)
    except ValueError as error:
        raise UnsupportedCompression(f"Unknown compression type {compression}") from error
    load, package = _LIBRARIES[kind]
    try:
        return load()
    except ImportError as error:
        raise UnsupportedCompression(
            f"{kind.name} needs the package {package}: {INSTALL}"
        ) from error
