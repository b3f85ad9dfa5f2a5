"""Takes out of a batch what was stored before, when an application sends its messages again in
batches that begin and end elsewhere.

To refuse such a batch would end the work of the official C++ and Python clients: they send it again
without end. The new entry is a batch of the new messages alone, uncompressed, because the broker
need not have the codec's other half.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pybroker.broker.deduplication.batch_ids import MAX_BYTES, MAX_MESSAGES, Examinations
from pybroker.broker.deduplication.producer_sequence import Standing
from pybroker.broker.deduplication.sent import MAX_TAKEN
from pybroker.broker.deduplication.sequence_ranges import Range
from pybroker.wire.decompression import CannotDecompress, in_parts
from pybroker.wire.message_metadata import BadEntry, build_entry, split_entry
from pybroker.wire.single_messages import single_messages

_U32: Final = struct.Struct(">I")


class Rebatched(NamedTuple):
    """What is new of a batch. No ranges: nothing is."""

    entry: bytes
    messages: int
    ranges: list[Range]


class _Batch(NamedTuple):
    metadata: Any
    plain: bytes
    ids: list[int]
    stops: list[int]  # where each message ends in `plain`

    def only(self, kept: list[int]) -> bytes:
        """An entry of the messages with these indexes; changes the metadata."""
        starts = [0, *self.stops]
        payload = b"".join(self.plain[starts[each] : self.stops[each]] for each in kept)
        metadata = self.metadata
        metadata.sequence_id = self.ids[kept[0]]
        metadata.num_messages_in_batch = len(kept)
        metadata.uncompressed_size = len(payload)
        metadata.ClearField("compression")
        return build_entry(metadata, payload)


def rebatched(
    entry: bytes, lowest: int, standing: Callable[[int], Standing], examinations: Examinations
) -> Rebatched | None:
    """None if that cannot be known, or the messages not be told apart. `standing` classifies an id
    of a single message.
    """
    batch = _split(entry, lowest)
    if batch is None:
        return None
    examinations.spend(len(batch.plain))
    found = list(map(standing, batch.ids))
    if not set(found) <= {Standing.NEW, Standing.DUPLICATE}:
        return None
    kept = [index for index, each in enumerate(found) if each is Standing.NEW]
    ranges = _ranges(batch.ids, kept)
    if not kept or len(kept) == len(found):
        return Rebatched(entry, len(found), ranges)
    new = batch.only(kept)
    if len(ranges) > MAX_TAKEN or len(new) > examinations.max_entry_bytes:
        return None
    return Rebatched(new, len(kept), ranges)


def _ranges(ids: list[int], kept: list[int]) -> list[Range]:
    """Of neighbours in the batch: like those of a whole batch, they include the ids in between."""
    ranges: list[Range] = []
    before = -2
    for index in kept:
        if index == before + 1:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], ids[index]))
        else:
            ranges.append((ids[index], ids[index]))
        before = index
    return ranges


def _split(entry: bytes, lowest: int) -> _Batch | None:
    ids: list[int] = []
    try:
        metadata, start = split_entry(entry)
        count = metadata.num_messages_in_batch
        if metadata.encryption_keys or not 1 < count <= MAX_MESSAGES:
            return None
        if max(len(entry), metadata.uncompressed_size) > MAX_BYTES:
            return None
        unpacked = in_parts(metadata.compression, entry[start:], metadata.uncompressed_size)
        plain, stops = b"".join(unpacked), [0]
        for single in single_messages(plain, count):
            ids.append(single.sequence_id if single.HasField("sequence_id") else lowest + len(ids))
            size = 4 + _U32.unpack_from(plain, stops[-1])[0] + single.payload_size
            stops.append(stops[-1] + size)
    except (BadEntry, CannotDecompress):
        return None
    return _Batch(metadata, plain, ids, stops[1:])
