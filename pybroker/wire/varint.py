"""Varints as protobuf writes them, and fixed-width ones for byte templates.

A padded varint carries superfluous continuation bits (5 is `85 80 00` instead of `05`). Every
protobuf parser accepts it, and a template with one keeps its length whatever the value is.
"""

from typing import Final

_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))


def encode(value: int) -> bytes:
    """Negative values take ten bytes, as protobuf's int32 and int64 do."""
    if 0 <= value <= 0x7F:
        return _ONE_BYTE[value]
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode(data: bytes) -> int:
    """The value of the varint that fills `data`, truncated to 64 bits."""
    value = 0
    for shift, byte in enumerate(data):
        value |= (byte & 0x7F) << (7 * shift)
    return value & 0xFFFF_FFFF_FFFF_FFFF


class _High(dict[int, bytes]):
    """Padded bytes 2 to 5 of an entry id, by `entry_id >> 7`; filled on demand."""

    def __missing__(self, high: int) -> bytes:
        encoded = bytes((0x80 | high & 0x7F, 0x80 | high >> 7 & 0x7F, 0x80 | high >> 14 & 0x7F))
        if len(self) > 65_536:
            self.clear()
        self[high] = encoded + bytes((high >> 21 & 0x7F,))
        return self[high]


# An entry id as a padded varint is ENTRY_LOW[id & 127] + ENTRY_HIGH[id >> 7]: 5 bytes, 35 bits.
ENTRY_LOW: Final = tuple(bytes((0x80 | low,)) for low in range(128))
ENTRY_HIGH: Final = _High()
ENTRY_WIDTH: Final = 5
