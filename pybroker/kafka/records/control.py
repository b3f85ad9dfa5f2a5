"""Batches that the broker writes itself: the markers of transactions, and placeholders.

A placeholder has offsets and no records. It stands for messages that the reader does not get, so
that its position moves over them; Kafka's own compaction leaves such batches.
"""

from struct import Struct
from typing import Final

from pybroker.kafka.records.batch import CONTROL, TRANSACTIONAL, build_batch
from pybroker.kafka.records.errors import BadRecords
from pybroker.kafka.records.record import Record, read_records, write_records

ABORT: Final = 0
COMMIT: Final = 1
_KEY: Final = Struct(">hh")  # version, type
_VALUE: Final = Struct(">hi")  # version, coordinator epoch


def marker_batch(
    offset: int,
    kind: int,
    producer_id: int,
    producer_epoch: int,
    time_ms: int,
    leader_epoch: int = 0,
    coordinator_epoch: int = 0,
) -> bytes:
    """The end of a transaction, `kind` COMMIT or ABORT. Source: KIP-98, "Control messages"."""
    record = Record(0, 0, _KEY.pack(0, kind), _VALUE.pack(0, coordinator_epoch))
    return build_batch(
        write_records((record,)),
        1,
        0,
        attributes=CONTROL | TRANSACTIONAL,
        base_offset=offset,
        leader_epoch=leader_epoch,
        base_timestamp=time_ms,
        max_timestamp=time_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def kind_of_marker(records: bytes) -> int:
    """COMMIT or ABORT; of the records of a control batch. Raises BadRecords."""
    (record,) = read_records(records, 1)
    if record.key is None or len(record.key) < _KEY.size:
        raise BadRecords("A control record has no type")
    return int(_KEY.unpack_from(record.key)[1])


def placeholder(first_offset: int, last_offset: int, leader_epoch: int = 0) -> bytes:
    """A batch without records for all offsets from `first_offset` to `last_offset`."""
    return build_batch(
        b"", 0, last_offset - first_offset, base_offset=first_offset, leader_epoch=leader_epoch
    )
