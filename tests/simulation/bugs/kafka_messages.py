"""Idempotent Kafka producers whose state does not outlive the broker as it should."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pybroker.kafka.log.producer_snapshots import ProducerSnapshots
from pybroker.kafka.producers.partition_producers import PartitionProducers, decode

_RIGHT = ProducerSnapshots.recover


@contextmanager
def kafka_windows_not_recovered() -> Iterator[None]:
    """After a restart nothing is known of any producer, so it may begin anywhere."""

    async def recover(self: Any) -> PartitionProducers:
        await _RIGHT(self)
        self._producers = PartitionProducers()
        return self._producers

    with patch.object(ProducerSnapshots, "recover", recover):
        yield


@contextmanager
def kafka_producers_older_than_the_log() -> Iterator[None]:
    """A snapshot is believed without the entries after it."""

    async def recover(self: Any) -> PartitionProducers:
        producers = await _RIGHT(self)
        if (stored := self._topic.metadata.get(self._key)) is not None:
            _, producers = decode(stored.value, self._topic.ledger.name)
            self._producers = producers
        return producers

    with patch.object(ProducerSnapshots, "recover", recover):
        yield


BUGS = {
    "kafka-windows-not-recovered": kafka_windows_not_recovered,
    "kafka-producers-older-than-the-log": kafka_producers_older_than_the_log,
}
