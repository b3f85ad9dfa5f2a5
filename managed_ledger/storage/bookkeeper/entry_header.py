"""The header in front of an entry's payload: the message count and the tag of the storage seam.

The header is a BrokerEntryMetadata as Apache Pulsar's interceptors write it: 0e 02, a u32 size, and
a Protocol Buffers message. Its two fields are pybroker extensions; Apache Pulsar ignores unknown
fields. An entry without them was written by another program: `count` counts its messages, and it
gets the tag for foreign entries. A client cannot imitate a foreign entry, because pybroker puts
these fields in front of every entry that is not BARE.

Source: org.apache.pulsar.common.protocol.Commands.addBrokerEntryMetadata.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from managed_ledger.codec import Reader, Writer
from managed_ledger.errors import CorruptStorage

_MAGIC: Final = b"\x0e\x02"
_HEAD_BYTES: Final = 6
_COUNT: Final = 1001 << 3
_TAG: Final = 1002 << 3 | 2
_KEPT: Final = 1000  # cached headers

Count = Callable[[bytes], int]


class Entry(NamedTuple):
    payload: bytes
    message_count: int
    tag: bytes


class Headers:
    """Encodes headers; frequent ones are cached."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, bytes], bytes] = {}

    def header(self, message_count: int, tag: bytes) -> bytes:
        found = self._made.get((message_count, tag))
        if found is None:
            if len(self._made) >= _KEPT:
                self._made.clear()
            found = self._made[message_count, tag] = encode(message_count, tag)
        return found


def encode(message_count: int, tag: bytes) -> bytes:
    out = Writer()
    out.number(_COUNT)
    out.number(message_count)
    if tag:
        out.number(_TAG)
        out.blob(tag)
    message = out.getvalue()
    return _MAGIC + len(message).to_bytes(4, "big") + message


def decode(stored: bytes, count: Count, foreign: bytes = b"") -> Entry:
    """`count` and the tag `foreign` are for entries of other programs. Raises CorruptStorage."""
    if not stored.startswith(_MAGIC):
        return Entry(stored, count(stored), foreign)
    end = _HEAD_BYTES + int.from_bytes(stored[2:_HEAD_BYTES], "big")
    if end > len(stored):
        raise CorruptStorage("an entry ends within its BrokerEntryMetadata")
    payload = stored[end:]
    message_count, tag = _fields(stored[_HEAD_BYTES:end])
    if message_count is None:
        return Entry(payload, count(payload), foreign)
    return Entry(payload, message_count, tag)


def _fields(message: bytes) -> tuple[int | None, bytes]:
    reader = Reader(message, "the BrokerEntryMetadata of an entry")
    message_count, tag = None, b""
    while not reader.at_end:
        key = reader.number()
        if key & 7 == 0:
            number = reader.number()
            message_count = number if key == _COUNT else message_count
        elif key & 7 == 2:
            blob = reader.blob()
            tag = blob if key == _TAG else tag
        else:
            raise CorruptStorage(f"a BrokerEntryMetadata has a field of wire type {key & 7}")
    return message_count, tag
