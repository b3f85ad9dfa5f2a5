"""Kafka's transactions whose ends reach too far, or are seen too early or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.kafka.log.partition_log import PartitionLog
from pybroker.kafka.log.reading import _Reading
from pybroker.kafka.transactions import ends
from pybroker.kafka.transactions.kafka_transactions import KafkaTransactions


@contextmanager
def kafka_late_ends_end_the_next() -> Iterator[None]:
    """An END names its producer, and not the epoch in which its transaction was."""
    right = KafkaTransactions.end

    async def end(self: Any, client: Any, claim: Any, *how: Any) -> Any:
        _, producer = await self._producer(claim)
        current = producer.stored
        if claim.key.producer_id == current.key.producer_id and current.txn_id is not None:
            claim = claim._replace(key=current.key)
        return await right(self, client, claim, *how)

    with patch.object(KafkaTransactions, "end", end):
        yield


@contextmanager
def kafka_ends_of_successors_answered() -> Iterator[None]:
    """An epoch that a newer producer has raised counts as raised by an END."""
    right = ends._answered_before

    def answered_before(stored: Any, claim: Any, action: Any) -> Any:
        former_epoch = stored.key.epoch - 1
        return right(replace(stored, former_epoch=former_epoch), claim, action)

    with patch.object(ends, "_answered_before", answered_before):
        yield


@contextmanager
def kafka_stable_offset_before_the_marker() -> Iterator[None]:
    """A transaction holds no reader back any more once its END has come."""
    ending = set[TxnId]()
    right_end, right_limit = KafkaTransactions.end, PartitionLog.limit
    right_start = KafkaTransactions.__init__

    def start(self: Any, *parts: Any) -> None:
        ending.clear()
        right_start(self, *parts)

    async def end(self: Any, client: Any, claim: Any, *how: Any) -> Any:
        _, producer = await self._producer(claim)
        if producer.stored.txn_id is not None and claim.key == producer.stored.key:
            ending.add(producer.stored.txn_id)
            for topic in self._topics.loaded():
                if topic.view is not None:
                    topic.view.notify()
        return await right_end(self, client, claim, *how)

    def limit(self: PartitionLog, committed_only: bool) -> Position:
        of_topic = {each.txn_id for each in self.topic.buffer.ongoing()}
        return right_limit(self, committed_only and not of_topic <= ending)

    with (
        patch.object(KafkaTransactions, "__init__", start),
        patch.object(KafkaTransactions, "end", end),
        patch.object(PartitionLog, "limit", limit),
    ):
        yield


@contextmanager
def kafka_aborted_batches_shown() -> Iterator[None]:
    """A reader gets everything in front of the last stable offset."""

    def looked_at(self: Any, run: Any, offset: int) -> Iterator[tuple[Any, bool]]:
        for placed in self._offsets.placed(run, offset):
            yield placed, placed.messages > 0 and placed.next_offset > self.fetched.next_offset

    with patch.object(_Reading, "_looked_at", looked_at):
        yield


BUGS = {
    "kafka-aborted-batches-shown": kafka_aborted_batches_shown,
    "kafka-ends-of-successors-answered": kafka_ends_of_successors_answered,
    "kafka-late-ends-end-the-next": kafka_late_ends_end_the_next,
    "kafka-stable-offset-before-the-marker": kafka_stable_offset_before_the_marker,
}
