"""The hash that chooses a key's partition, the same in all parts of pybroker."""

from typing import Final

_U32: Final = 0xFFFF_FFFF
_POSITIVE: Final = 0x7FFF_FFFF


def java_string_hash(key: str) -> int:
    """Java's String.hashCode, over UTF-16 code units, without the sign bit."""
    value = 0
    units = memoryview(key.encode("utf-16-le", "surrogatepass")).cast("H")
    for unit in units:
        value = (31 * value + unit) & _U32
    return value & _POSITIVE
