"""One producer of a local connection: its messages' metadata, and which of them await an answer."""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from managed_ledger.position import Position
from pybroker.base.errors import PulsarError
from pybroker.broker.local_messages import LocalBatch, LocalMessage
from pybroker.wire import pulsar_api_pb2 as pb

_DUPLICATE: Final = 2**64 - 1  # both ids of a message that deduplication dropped


class Sending:
    def __init__(self, producer_id: int, batch: LocalBatch) -> None:
        self.producer_id = producer_id
        self.producer_name = ""
        self.batch = batch
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outcomes: list[Position | PulsarError | None] = [None] * len(batch.messages)
        self._unanswered = len(batch.messages)
        self._waiting: dict[int, deque[int]] = {}  # indexes of messages, by sequence id
        self._next_sequence_id = 0

    def opened(self, answer: pb.CommandProducerSuccess) -> None:
        self.producer_name = answer.producer_name
        self.batch.schema_version = answer.schema_version
        self._next_sequence_id = answer.last_sequence_id + 1
        if not self._unanswered:
            self._finish()

    def refuse(self, error: PulsarError) -> None:
        self.batch.refusal = error
        self.lose(error)

    def sequence_id_of(self, message: LocalMessage) -> int:
        chosen = message.sequence_id
        sequence_id = self._next_sequence_id if chosen is None else chosen
        self._next_sequence_id = max(self._next_sequence_id, sequence_id + 1)
        return sequence_id

    def metadata(self, message: LocalMessage, sequence_id: int, now_ms: int) -> pb.MessageMetadata:
        metadata = pb.MessageMetadata(
            producer_name=self.producer_name,
            sequence_id=sequence_id,
            publish_time=now_ms,
            partition_key=message.key,
            uncompressed_size=len(message.payload),
            replicate_to=message.replicate_to,
            properties=key_values(message.properties),
        )
        if message.key_is_base64:
            metadata.partition_key_b64_encoded = True
        if message.event_time_ms:
            metadata.event_time = message.event_time_ms
        if message.deliver_at_ms is not None:
            metadata.deliver_at_time = message.deliver_at_ms
        if (txn_id := self.batch.txn_id) is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = txn_id
        if self.batch.schema_version:
            metadata.schema_version = self.batch.schema_version
        return metadata

    def send(self, sequence_id: int) -> pb.CommandSend:
        send = pb.CommandSend(producer_id=self.producer_id, sequence_id=sequence_id)
        if (txn_id := self.batch.txn_id) is not None:
            send.txnid_most_bits, send.txnid_least_bits = txn_id
        return send

    def wait_for(self, sequence_id: int, index: int) -> None:
        self._waiting.setdefault(sequence_id, deque()).append(index)

    def stored(self, receipt: pb.CommandSendReceipt) -> None:
        where = receipt.message_id
        position = Position(where.ledgerId, where.entryId)
        if where.ledgerId == _DUPLICATE:
            position = Position(-1, -1)
        self.answer_next(receipt.sequence_id, position)

    def answer_next(self, sequence_id: int, outcome: Position | PulsarError) -> None:
        """Answers come in the order of the messages."""
        if waiting := self._waiting.get(sequence_id):
            self.answer(waiting.popleft(), outcome)

    def answer(self, index: int, outcome: Position | PulsarError) -> None:
        if self._outcomes[index] is None:
            self._outcomes[index] = outcome
            self._unanswered -= 1
        if not self._unanswered:
            self._finish()

    def lose(self, error: PulsarError) -> None:
        if not self.answered.done():
            self._outcomes = [error if each is None else each for each in self._outcomes]
            self._unanswered = 0
            self._finish()

    def _finish(self) -> None:
        if not self.answered.done():
            self.batch.outcomes = [each for each in self._outcomes if each is not None]
            self.answered.set_result(None)


def key_values(properties: Mapping[str, str]) -> Any:
    return [{"key": key, "value": value} for key, value in properties.items()]
