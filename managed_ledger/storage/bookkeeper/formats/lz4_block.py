"""A block of LZ4, decompressed in plain Python: records of metadata are small, and the broker must
read them without an optional package.

    token: 4 bits literals, 4 bits match - 4 │ more literals │ literals │ offset u16 │ more match
    15 in the token: bytes follow, up to and including one below 255, that are added

Source: "LZ4 Block Format Description" of lz4.
"""

from typing import Final

_MORE: Final = 15  # the length goes on in the following bytes
_LEAST_MATCH: Final = 4


class BadBlock(ValueError):
    """The message completes "… cannot be decompressed: "."""


def decompressed(block: bytes, size: int) -> bytes:
    """`size`: of the result, in bytes; nothing longer is ever made. Raises BadBlock."""
    made, at = bytearray(), 0
    try:
        while True:
            token = block[at]
            literals, at = _length(block, at + 1, token >> 4)
            if at + literals > len(block) or len(made) + literals > size:
                raise BadBlock("its literals exceed it")
            made += block[at : at + literals]
            at += literals
            if at == len(block):  # the last sequence has no match
                break
            offset = int.from_bytes(block[at : at + 2], "little")
            length, at = _length(block, at + 2, token & _MORE)
            length += _LEAST_MATCH
            if not 0 < offset <= len(made) or len(made) + length > size:
                raise BadBlock("it refers to bytes that it does not have")
            _repeat(made, offset, length)
    except IndexError:
        raise BadBlock("it is incomplete") from None
    if len(made) != size:
        raise BadBlock(f"it has {len(made)} bytes and should have {size}")
    return bytes(made)


def _length(block: bytes, at: int, first: int) -> tuple[int, int]:
    """The length, and where the block goes on."""
    length = first
    if first == _MORE:
        while (more := block[at]) == 255:
            length += more
            at += 1
        length += more
        at += 1
    return length, at


def _repeat(made: bytearray, offset: int, length: int) -> None:
    """Append `length` bytes from `offset` bytes before the end: a match may overlap itself."""
    start = len(made) - offset
    pattern = bytes(made[start : start + length])
    times, rest = divmod(length, len(pattern))
    made += pattern * times + pattern[:rest]
