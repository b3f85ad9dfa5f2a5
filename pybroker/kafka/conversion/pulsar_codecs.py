"""Kafka's codecs <-> those of Pulsar's messages, and compressing as Pulsar does."""

import importlib
import zlib
from functools import partial
from typing import Any, Final

from pybroker.kafka.records import compression as kafka
from pybroker.kafka.records.steps import Steps, apart
from pybroker.wire import pulsar_api_pb2 as pb

PULSAR_CODECS: Final[dict[int, int]] = {
    kafka.NONE: pb.NONE,
    kafka.GZIP: pb.ZLIB,
    kafka.SNAPPY: pb.SNAPPY,
    kafka.LZ4: pb.LZ4,
    kafka.ZSTD: pb.ZSTD,
}
KAFKA_CODECS: Final = {theirs: ours for ours, theirs in PULSAR_CODECS.items()}
_FAST: Final = 1  # zlib's level


def packed(codec: int, plain: bytes) -> Steps[tuple[bytes, int]]:
    """The payload and its CompressionType: NONE if compressing would make it longer. The codec's
    library is there, because what is compressed here has just been decompressed by it.
    """
    data = yield from apart(len(plain), partial(_compressed, codec, plain))
    return (data, codec) if len(data) < len(plain) else (plain, pb.NONE)


def _compressed(codec: int, plain: bytes) -> bytes:
    if codec == pb.NONE:
        return plain
    if codec == pb.ZLIB:
        return zlib.compress(plain, _FAST)
    library: Any
    if codec == pb.LZ4:
        library = importlib.import_module("lz4.block")
        return bytes(library.compress(plain, store_size=False))
    if codec == pb.ZSTD:
        library = importlib.import_module("zstandard")
        return bytes(library.ZstdCompressor().compress(plain))
    library = importlib.import_module("snappy")
    return bytes(library.compress(plain))
