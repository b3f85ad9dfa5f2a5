"""A group of Kafka's that listens to members of the past."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from pybroker.kafka.coordinator.shard import Shard
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.offsets.log import OffsetsLog
from pybroker.kafka.offsets.state import OffsetsState


@contextmanager
def kafka_old_generations_commit() -> Iterator[None]:
    """Whoever was a member may commit offsets."""
    with patch.object(Shard, "may_commit", lambda *_, **__: ErrorCode.NONE):
        yield


@contextmanager
def kafka_offsets_lost_at_recovery() -> Iterator[None]:
    """A group that was read from its log knows nothing of offsets in open transactions."""
    right = OffsetsLog._replay

    def replay(self: OffsetsLog, entry: bytes) -> int:
        with patch.object(OffsetsState, "_hold", lambda *_: None):
            return right(self, entry)

    with patch.object(OffsetsLog, "_replay", replay):
        yield


BUGS = {
    "kafka-offsets-lost-at-recovery": kafka_offsets_lost_at_recovery,
    "kafka-old-generations-commit": kafka_old_generations_commit,
}
