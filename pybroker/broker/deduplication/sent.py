"""The tag of an append: what deduplication stores with it, for recovery.

It names the producer and the sequence ids as in the SENDs, whatever the messages' metadata says.
The refusal of a message gives its ids back without a trace in the log. So they are stored with the
producer's next append: a durable later id never hides an earlier one.
"""

from typing import Final, NamedTuple

from managed_ledger.codec import Reader, Writer
from pybroker.broker.deduplication.sequence_ranges import Range

# A tag is limited to 65,535 bytes; a range may take twenty, a name four thousand.
MAX_TAKEN: Final = 1500  # messages in one append
MAX_TOLD: Final = 1000  # ranges


class Sent(NamedTuple):
    producer: str
    chunk: int  # the number of the chunk; -1 for whole messages, and for the last chunk
    taken: list[Range]
    returned: list[Range]
    floor: int  # up to here it is unknown which ids were returned


def encode_sent(sent: Sent) -> bytes:
    out = Writer()
    out.text(sent.producer)
    out.number(sent.chunk + 1)
    _write_ranges(out, sent.taken)
    _write_ranges(out, sent.returned)
    out.number(sent.floor + 1)
    return out.getvalue()


def decode_sent(value: bytes) -> Sent:
    """Raises CorruptStorage if the bytes end too early."""
    data = Reader(value, "the tag of a message")
    return Sent(
        data.text(), data.number() - 1, _read_ranges(data), _read_ranges(data), data.number() - 1
    )


def _write_ranges(out: Writer, ranges: list[Range]) -> None:
    out.number(len(ranges))
    before = 0
    for first, last in sorted(ranges):
        out.number(first - before)
        out.number(last - first)
        before = last


def _read_ranges(data: Reader) -> list[Range]:
    ranges, last = [], 0
    for _ in range(data.number()):
        first = last + data.number()
        last = first + data.number()
        ranges.append((first, last))
    return ranges
