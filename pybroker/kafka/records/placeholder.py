"""A batch that has offsets and no records.

It stands for messages that the reader does not get, so that its position moves over them; Kafka's
own compaction leaves such batches.
"""

from pybroker.kafka.records.batch import build_batch


def placeholder(first_offset: int, last_offset: int, leader_epoch: int = 0) -> bytes:
    """A batch without records for all offsets from `first_offset` to `last_offset`."""
    return build_batch(
        b"", 0, last_offset - first_offset, base_offset=first_offset, leader_epoch=leader_epoch
    )
