"""The header of a RecordBatch, and the fields that a broker sets.

    [base offset i64][length i32][leader epoch i32][magic i8][crc u32]
    [attributes i16][last offset delta i32][base timestamp i64][max timestamp i64]
    [producer id i64][producer epoch i16][base sequence i32][count i32] [records]

The CRC-32C covers everything after itself, so the broker sets base offset and leader epoch without
computing it again. `length` counts from the leader epoch on. Source: KIP-98, "RecordBatch".
"""

from struct import Struct
from typing import Final, NamedTuple

from managed_ledger.checksum import crc32c
from managed_ledger.config import MAX_MESSAGES_PER_ENTRY
from pybroker.kafka.records.errors import (
    BadRecords,
    BadTimestamp,
    CorruptBatch,
    TooManyRecords,
    UnsupportedCompression,
    UnsupportedFormat,
)

MAGIC: Final = 2
HEADER_BYTES: Final = 61
NO_PRODUCER_ID: Final = -1
NO_TIMESTAMP: Final = -1
LAST_SEQUENCE: Final = 2**31 - 1
LEAST_RECORD_BYTES: Final = 7
_HEADER: Final = Struct(">qiibIhiqqqhii")
_PLACE: Final = Struct(">qii")  # base offset, length, leader epoch
_BODY: Final = Struct(">hiqqqhii")  # what the CRC covers, without the records
_LENGTH_AT: Final = 8
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_LENGTH_OF: Final = 12  # bytes before those that `length` counts
_CODECS: Final = 5

# Bits of the attributes.
CODEC: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.length + _LENGTH_OF

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def last_sequence(self) -> int:
        return sequence_after(self.base_sequence, self.last_offset_delta)


def sequence_after(sequence: int, steps: int) -> int:
    """Sequences count from 0 to 2^31 - 1, and then from 0 again."""
    return (sequence + steps) & LAST_SEQUENCE


def header_of(batch: bytes) -> BatchHeader:
    """The header, without any check but for its size. Raises CorruptBatch."""
    if len(batch) < HEADER_BYTES:
        raise CorruptBatch(f"A RecordBatch has {len(batch)} bytes; its header takes {HEADER_BYTES}")
    return BatchHeader._make(_HEADER.unpack_from(batch))


def checked(batch: bytes) -> BatchHeader:
    """The header of a batch that is whole: size, magic and CRC are right. Raises BadRecords."""
    header = header_of(batch)
    if header.magic != MAGIC:
        raise UnsupportedFormat(
            f"The records have message format {header.magic}; use a client that writes format 2 "
            "(Kafka 0.11 or later)"
        )
    if header.length != len(batch) - _LENGTH_OF:
        raise CorruptBatch(
            f"A RecordBatch of {len(batch)} bytes says that it has {header.length + _LENGTH_OF}"
        )
    if header.crc != crc32c(memoryview(batch)[_ATTRIBUTES_AT:]):
        raise CorruptBatch("A RecordBatch does not match its CRC-32C")
    return header


def checked_from_client(batch: bytes) -> BatchHeader:
    """Like `checked`, for what a producer sends: it numbers its records without gaps, and writes
    no control batches. Raises BadRecords.
    """
    header = checked(batch)
    if header.record_count != header.last_offset_delta + 1 or header.record_count <= 0:
        raise BadRecords(
            f"A RecordBatch of {header.record_count} records numbers them from 0 to "
            f"{header.last_offset_delta}"
        )
    _check_count(header)
    if header.attributes & CONTROL:
        raise BadRecords("Only the broker writes control batches")
    if header.attributes & LOG_APPEND_TIME:
        raise BadTimestamp("Only the broker knows when records are appended: send CreateTime")
    if header.attributes & CODEC >= _CODECS:
        raise UnsupportedCompression(f"Compression {header.attributes & CODEC} is not known")
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise BadRecords(
                f"Producer {header.producer_id} sends epoch {header.producer_epoch} and sequence "
                f"{header.base_sequence}; both begin at 0"
            )
    elif header.attributes & TRANSACTIONAL:
        raise BadRecords("A transactional RecordBatch needs a producer id")
    return header


def _check_count(header: BatchHeader) -> None:
    """The count becomes offsets, permits and bits of acknowledgements: it is as bounded as that of
    Pulsar's batches. Raises BadRecords.
    """
    count = header.record_count
    if count > MAX_MESSAGES_PER_ENTRY:
        raise TooManyRecords(
            f"A RecordBatch of {count} records: the broker stores at most "
            f"{MAX_MESSAGES_PER_ENTRY} in one; lower batch.size"
        )
    there = header.size_bytes - HEADER_BYTES
    if not header.attributes & CODEC and count * LEAST_RECORD_BYTES > there:
        raise BadRecords(f"{there} bytes cannot hold {count} records")


def placed_at(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    """The batch at its place in the log; everything else stays as it came."""
    length = len(batch) - _LENGTH_OF
    return _PLACE.pack(base_offset, length, leader_epoch) + batch[_MAGIC_AT:]


def stamped(batch: bytes, append_time_ms: int) -> bytes:
    """The batch with LogAppendTime: one time for all its records, and a new CRC."""
    header = header_of(batch)
    body = _BODY.pack(
        header.attributes | LOG_APPEND_TIME,
        header.last_offset_delta,
        header.base_timestamp,
        append_time_ms,
        *header[9:],
    )
    body += batch[HEADER_BYTES:]
    return batch[:_CRC_AT] + crc32c(body).to_bytes(4, "big") + body


def build_batch(
    records: bytes,
    count: int,
    last_offset_delta: int,
    *,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = 0,
    base_timestamp: int = NO_TIMESTAMP,
    max_timestamp: int = NO_TIMESTAMP,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """`records` are encoded, and compressed as `attributes` says."""
    body = _BODY.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    body += records
    length = len(body) + _ATTRIBUTES_AT - _LENGTH_OF
    head = _PLACE.pack(base_offset, length, leader_epoch)
    return b"".join((head, bytes((MAGIC,)), crc32c(body).to_bytes(4, "big"), body))
