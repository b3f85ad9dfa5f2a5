"""Payloads that contradict their metadata."""

import importlib
import tracemalloc
import zlib
from typing import Any

import pytest

from pybroker.wire.decompression import CannotDecompress, decompressed, in_parts

LZ4, ZLIB, ZSTD, SNAPPY = range(1, 5)
PLAIN = b"ab" * 5000


def compressed(compression: int, plain: bytes) -> bytes:
    if compression == ZLIB:
        return zlib.compress(plain)
    library: Any
    if compression == LZ4:
        library = importlib.import_module("lz4.block")
        return bytes(library.compress(plain, store_size=False))
    if compression == ZSTD:
        library = importlib.import_module("zstandard")
        return bytes(library.ZstdCompressor().compress(plain))
    library = importlib.import_module("snappy")
    return bytes(library.compress(plain))


@pytest.mark.parametrize("compression", [LZ4, ZLIB, ZSTD, SNAPPY])
@pytest.mark.parametrize("plain", [b"", PLAIN])
def test_what_was_compressed_comes_back_if_it_has_the_size_that_it_claims(
    compression: int, plain: bytes
) -> None:
    payload = compressed(compression, plain)
    assert decompressed(compression, payload, len(plain)) == plain
    assert b"".join(in_parts(compression, payload, len(plain))) == plain
    for size in {max(0, len(plain) - 1), len(plain) + 1} - {len(plain)}:
        with pytest.raises(CannotDecompress):
            decompressed(compression, payload, size)
        with pytest.raises(CannotDecompress):
            list(in_parts(compression, payload, size))


def test_zstd_takes_no_more_memory_than_the_metadata_claims() -> None:
    payload = compressed(ZSTD, bytes(64 * 1024 * 1024))
    tracemalloc.start()
    try:
        with pytest.raises(CannotDecompress, match="the 10 bytes that it claims"):
            decompressed(ZSTD, payload, 10)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 8 * 1024 * 1024


def test_snappy_is_not_asked_for_more_than_the_metadata_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = importlib.import_module("snappy")
    monkeypatch.setattr(library, "decompress", pytest.fail)
    payload = b"\xff\xff\xff\xff\x0f" + b"\0a"  # claims four gigabytes
    for read in (decompressed, lambda *args: list(in_parts(*args))):
        with pytest.raises(CannotDecompress, match="the 10 bytes that it claims"):
            read(SNAPPY, payload, 10)
