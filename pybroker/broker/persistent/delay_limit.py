"""The maximum delay of a message, checked on arrival, only if there is a limit."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from pybroker.base.errors import NotAllowed
from pybroker.wire.message_metadata import BadEntry, may_be_delayed, parse_metadata


def pieces(entries: Sequence[bytes], max_delay_ms: int) -> Iterator[tuple[int, int, bool]]:
    """Start and stop of each run of entries, and whether these are delayed too far."""
    too_far = {
        index for index in may_be_delayed(entries) if _delay_ms(entries[index]) > max_delay_ms
    }
    start = 0
    for refused, run in groupby(range(len(entries)), too_far.__contains__):
        stop = start + sum(1 for _ in run)
        yield start, stop, refused
        start = stop


def refusal(max_delay_ms: int) -> NotAllowed:
    return NotAllowed(f"Exceeds max allowed delivery delay of {max_delay_ms} milliseconds")


def _delay_ms(entry: bytes) -> int:
    """The delay after the publish time, which the producer sets; 0 if the entry is not delayed."""
    try:
        metadata = parse_metadata(entry)
    except BadEntry:
        return 0
    delayed = metadata.HasField("deliver_at_time")
    return metadata.deliver_at_time - metadata.publish_time if delayed else 0
