"""How a RecordBatch is stored: as one entry, with a MessageMetadata in front of it.

    [metadata size u32][MessageMetadata][RecordBatch as it came, with its offset]

There is no checksum in front: the batch has its own. The metadata counts the batch's messages, and
has the property `entry.format` = `kafka`, as in KoP, which tells what the payload is. Whoever reads
entries for Pulsar's clients passes them through `to_pulsar.py`.
"""

from struct import Struct
from typing import Final

from pybroker.kafka.records.batch import BatchHeader
from pybroker.wire import varint
from pybroker.wire.frames import BROKER_METADATA_MAGIC

_PRODUCER: Final = b"\x0a\x05kafka"  # field 1
_FORMAT: Final = b"\x22\x15\x0a\x0centry.format\x12\x05kafka"  # field 4, a property
_HEAD: Final = _PRODUCER + _FORMAT
_HEAD_BYTES: Final = len(_HEAD)
_SEQUENCE_ID: Final = b"\x10"  # field 2
_PUBLISH_TIME: Final = b"\x18"  # field 3
_COUNT: Final = b"\x58"  # field 11, num_messages_in_batch
_U32: Final = Struct(">I")
_STAMP: Final = Struct(">HI")
_STAMP_MAGIC: Final = BROKER_METADATA_MAGIC.to_bytes(2, "big")
_PLACE: Final = Struct(">qii")  # of a RecordBatch: base offset, length, leader epoch
_PLACE_BYTES: Final = _PLACE.size


def kafka_entry(
    batch: bytes, header: BatchHeader, base_offset: int, leader_epoch: int, time_ms: int
) -> bytes:
    """The entry to append. The base offset is its sequence id, so that no two are equal."""
    metadata = b"".join(
        (
            _HEAD,
            _SEQUENCE_ID,
            varint.encode(base_offset),
            _PUBLISH_TIME,
            varint.encode(time_ms),
            _COUNT,
            varint.encode(header.last_offset_delta + 1),
        )
    )
    place = _PLACE.pack(base_offset, header.length, leader_epoch)
    return b"".join((_U32.pack(len(metadata)), metadata, place, batch[_PLACE_BYTES:]))


def batch_start(entry: bytes) -> int:
    """Where the RecordBatch of a stored entry begins; 0 if the entry is not Kafka's."""
    at = 0
    if entry.startswith(_STAMP_MAGIC):
        if len(entry) < _STAMP.size:
            return 0
        at = _STAMP.size + int(_STAMP.unpack_from(entry)[1])
    start = at + 4
    if not entry.startswith(_HEAD, start):
        return 0
    return start + int(_U32.unpack_from(entry, at)[0])
