"""Zigzag varints, as in the records of a batch. Source: Kafka's documentation, "Record"."""

from pybroker.kafka.records.errors import BadRecords

_MOST_BITS = 70  # ten bytes of seven bits


def write_varint(out: bytearray, value: int) -> None:
    """`value` is a signed number of at most 64 bits."""
    rest = value << 1 if value >= 0 else (~value << 1) | 1
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends. Raises BadRecords."""
    try:
        byte = data[at]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
        rest, shift = byte & 0x7F, 7
        while True:
            at += 1
            byte = data[at]
            rest |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (rest >> 1) ^ -(rest & 1), at + 1
            shift += 7
            if shift >= _MOST_BITS:
                raise BadRecords("A number in a record has more than ten bytes")
    except IndexError:
        raise BadRecords(f"A record ends within a number, after {len(data)} bytes") from None
