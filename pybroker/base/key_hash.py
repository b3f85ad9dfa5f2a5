"""The hash that chooses a key's partition, wherever it is chosen."""

from typing import Final

_U32: Final = 0xFFFF_FFFF
_POSITIVE: Final = 0x7FFF_FFFF


def java_string_hash(key: str) -> int:
    """String.hashCode of Java, without its sign: over UTF-16 code units."""
    value = 0
    units = memoryview(key.encode("utf-16-le", "surrogatepass")).cast("H")
    for unit in units:
        value = (31 * value + unit) & _U32
    return value & _POSITIVE
