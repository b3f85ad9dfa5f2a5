"""Compressed values: 47 78, a u32 size, a message that names the compression, and the compressed
bytes.

Apache Pulsar compresses with LZ4 from version 5.0 on; before that, only if
managedLedgerInfoCompressionType or managedCursorInfoCompressionType is set.

Source: org.apache.bookkeeper.mledger.impl.MetaStoreImpl.
"""

import zlib
from typing import Final

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.bookkeeper.formats.lz4_block import BadBlock, decompressed
from managed_ledger.storage.bookkeeper.formats.protobuf import fields

_MAGIC: Final = b"\x47\x78"
_HEAD_BYTES: Final = 6
_NONE, _LZ4, _ZLIB = 0, 1, 2
_NAMES: Final = {3: "ZSTD", 4: "SNAPPY"}
MAX_BYTES: Final = 64 << 20  # decompressed


def plain(value: bytes, what: str) -> bytes:
    """The value, decompressed if necessary. Raises CorruptStorage."""
    if not value.startswith(_MAGIC):
        return value
    end = _HEAD_BYTES + int.from_bytes(value[2:_HEAD_BYTES], "big")
    if end > len(value):
        raise CorruptStorage(f"{what} ends within the description of its compression")
    head = {each.number: each.value for each in fields(value[_HEAD_BYTES:end], what)}
    kind = head.get(1, _NONE)
    if kind == _NONE:
        return value[end:]
    if kind == _LZ4:
        return _unpacked(value[end:], head.get(2, 0), what)
    if kind == _ZLIB:
        return _inflated(value[end:], what)
    name = _NAMES.get(kind, f"type {kind}")
    raise CorruptStorage(
        f"{what} is compressed with {name}, which is not read; set "
        "managedLedgerInfoCompressionType and managedCursorInfoCompressionType to LZ4 or ZLIB in "
        "Apache Pulsar and let it write the value again"
    )


def _unpacked(value: bytes, size: object, what: str) -> bytes:
    if not isinstance(size, int) or size > MAX_BYTES:
        raise CorruptStorage(f"{what} cannot be decompressed: it has more than {MAX_BYTES} bytes")
    try:
        return decompressed(value, size)
    except BadBlock as why:
        raise CorruptStorage(f"{what} cannot be decompressed: {why}") from None


def _inflated(value: bytes, what: str) -> bytes:
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(value, MAX_BYTES)
    except zlib.error as why:
        raise CorruptStorage(f"{what} cannot be decompressed: {why}") from None
    if not stream.eof:
        raise CorruptStorage(
            f"{what} cannot be decompressed: it is incomplete or has more than {MAX_BYTES} bytes"
        )
    return inflated
