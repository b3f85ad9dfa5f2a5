"""Reads what the broker answers a FETCH with."""

from collections.abc import Iterator

from pybroker.kafka.records.batch import CODEC, HEADER_BYTES, BatchHeader, header_of
from pybroker.kafka.records.compression import decompress
from pybroker.kafka.records.record import Record, read_records
from pybroker.kafka.records.steps import at_once


def split_batches(records: bytes) -> Iterator[bytes]:
    """The batches that follow each other in `records`. Raises CorruptBatch."""
    while records:
        size = header_of(records).size_bytes
        yield records[:size]
        records = records[size:]


def batch_records(batch: bytes) -> tuple[BatchHeader, list[Record]]:
    """Raises BadRecords."""
    header = header_of(batch)
    plain = at_once(decompress(header.attributes & CODEC, batch[HEADER_BYTES:]))
    return header, list(read_records(plain, header.record_count))
