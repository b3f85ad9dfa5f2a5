"""The codecs of records. gzip is always there, the others with the extra `compression`.

Every result has a limit that is checked before its memory is taken: the sender of a batch does not
say how much it decompresses to.
"""

import importlib
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from pybroker.kafka.records.errors import BadRecords, TooManyBytes, UnsupportedCompression
from pybroker.kafka.records.steps import Steps, apart

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)  # in a batch's attributes
MAX_BYTES: Final = 64 * 1024 * 1024
INSTALL: Final = "pip install 'pybroker[compression]'"
_PART_BYTES: Final = 1024 * 1024
_GZIP_WINDOW: Final = 31  # zlib's way to say gzip
_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEAD: Final = 16  # the magic, and two versions
_XERIAL_BLOCK: Final = 32 * 1024


def decompress(codec: int, data: bytes, most_bytes: int = MAX_BYTES) -> Steps[bytes]:
    """Raises TooManyBytes above `most_bytes`, UnsupportedCompression if the codec's package is
    missing, BadRecords for bytes that do not decompress.
    """
    if codec == NONE:
        return data
    try:
        return (yield from _within(_parts_of(codec)(data, most_bytes), most_bytes))
    except ImportError:
        raise _missing(codec) from None
    except BadRecords:
        raise
    except Exception as error:  # each library has its own errors
        raise BadRecords(f"Records do not decompress: {error}") from error


def compress(codec: int, data: bytes) -> Steps[bytes]:
    """`compressed`, in a thread if it is long."""
    return (yield from apart(len(data), partial(compressed, codec, data)))


def compressed(codec: int, data: bytes) -> bytes:
    """Takes milliseconds for each MiB. Raises UnsupportedCompression."""
    try:
        return _compressed(codec, data)
    except ImportError:
        raise _missing(codec) from None


class _Block(NamedTuple):
    """A part that its library decompresses at once, however large it is."""

    size_bytes: int
    work: Callable[[], bytes]


_Parts = Iterator[bytes | _Block]


def _within(parts: _Parts, most_bytes: int) -> Steps[bytes]:
    found, size = [], 0
    for part in parts:
        plain = part if isinstance(part, bytes) else (yield from apart(*part))
        size += len(plain)
        if size > most_bytes:
            raise TooManyBytes(f"Records decompress to more than {most_bytes} bytes")
        found.append(plain)
        yield None
    return (yield from apart(size, partial(b"".join, found)))


def _parts_of(codec: int) -> Callable[[bytes, int], _Parts]:
    parts = {GZIP: _of_gzip, SNAPPY: _of_snappy, LZ4: _of_lz4, ZSTD: _of_zstd}.get(codec)
    if parts is None:
        raise UnsupportedCompression(f"Compression {codec} is not known")
    return parts


def _of_gzip(data: bytes, most_bytes: int) -> _Parts:
    while data:
        member = zlib.decompressobj(_GZIP_WINDOW)
        while part := member.decompress(data, _PART_BYTES):
            yield part
            data = member.unconsumed_tail
        if not member.eof:
            raise BadRecords("Records compressed by gzip are cut off")
        data = member.unused_data


def _of_lz4(data: bytes, most_bytes: int) -> _Parts:
    library: Any = importlib.import_module("lz4.frame")
    frame = library.LZ4FrameDecompressor()
    part = frame.decompress(data, max_length=_PART_BYTES)
    while part or not (frame.eof or frame.needs_input):
        yield part
        part = b"" if frame.eof else frame.decompress(b"", max_length=_PART_BYTES)
    if not frame.eof:
        raise BadRecords("Records compressed by lz4 are cut off")


def _of_zstd(data: bytes, most_bytes: int) -> _Parts:
    library: Any = importlib.import_module("zstandard")
    with library.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        while part := reader.read(_PART_BYTES):
            yield part


def _of_snappy(data: bytes, most_bytes: int) -> _Parts:
    """Java's clients write blocks behind a header, librdkafka one block alone."""
    library: Any = importlib.import_module("snappy")
    for block in _xerial_blocks(data) if data.startswith(_XERIAL) else (data,):
        if (size := _size_of_snappy(block)) > most_bytes:
            raise TooManyBytes(f"Records decompress to more than {most_bytes} bytes")
        yield _Block(size, partial(_of_block, library.decompress, block))


def _of_block(decompress: Callable[[bytes], Any], block: bytes) -> bytes:
    return bytes(decompress(block))


def _xerial_blocks(data: bytes) -> Iterator[bytes]:
    at = _XERIAL_HEAD
    while at < len(data):
        start = at + 4
        at = start + int.from_bytes(data[at:start], "big")
        if at > len(data) or at == start:
            raise BadRecords("Records compressed by snappy are cut off")
        yield data[start:at]


def _size_of_snappy(block: bytes) -> int:
    """How much the library will allocate: the varint in front."""
    size = 0
    for shift, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            break
    return size


def _compressed(codec: int, data: bytes) -> bytes:
    library: Any
    if codec == NONE:
        return data
    if codec == GZIP:
        member = zlib.compressobj(1, zlib.DEFLATED, _GZIP_WINDOW)
        return member.compress(data) + member.flush()
    if codec == SNAPPY:
        library = importlib.import_module("snappy")
        head = _XERIAL + b"\0\0\0\1\0\0\0\1"
        return head + b"".join(_snappy_blocks(library.compress, data))
    if codec == LZ4:
        library = importlib.import_module("lz4.frame")
        return bytes(library.compress(data))
    if codec == ZSTD:
        library = importlib.import_module("zstandard")
        return bytes(library.ZstdCompressor().compress(data))
    raise UnsupportedCompression(f"Compression {codec} is not known")


def _snappy_blocks(compress: Callable[[bytes], bytes], data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), _XERIAL_BLOCK):
        block = compress(data[at : at + _XERIAL_BLOCK])
        yield len(block).to_bytes(4, "big") + block


def _missing(codec: int) -> UnsupportedCompression:
    name = ("", "gzip", "snappy", "lz4", "zstd")[codec]
    return UnsupportedCompression(f"The broker cannot read records compressed by {name}: {INSTALL}")
