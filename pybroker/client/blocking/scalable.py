"""The blocking forms of what only scalable topics have. Loaded on first use."""

from collections.abc import Sequence

from pybroker.client.blocking.consumer import Consumer, Receiving
from pybroker.client.blocking.loop_thread import LoopThread
from pybroker.client.blocking.transaction import Transaction
from pybroker.client.consuming.consumer import Acknowledgeable
from pybroker.client.messages import Message
from pybroker.client.scalable import checkpoint_consumer, stream_consumer
from pybroker.client.scalable.checkpoint import Checkpoint


class StreamConsumer(Consumer):
    """Created by Client.create_stream_consumer."""

    def __init__(self, thread: LoopThread, core: stream_consumer.StreamConsumer) -> None:
        super().__init__(thread, core)
        self._stream = core

    def receive(self, timeout_millis: int | None = None) -> Message:
        """Waits for the next message. Raises Timeout."""
        message = super().receive(timeout_millis)
        self._stream.received.add(message)
        return message

    def acknowledge(
        self, message: Acknowledgeable | Sequence[Acknowledgeable], txn: Transaction | None = None
    ) -> None:
        """Raises NotAllowed: see acknowledge_cumulative."""
        self._stream.refuse_individual()

    def negative_acknowledge(self, message: Acknowledgeable) -> None:
        """Raises NotAllowed, as `acknowledge` does."""
        self._stream.refuse_individual()


class CheckpointConsumer(Receiving[checkpoint_consumer.CheckpointConsumer]):
    """Created by Client.create_checkpoint_consumer."""

    def __init__(self, thread: LoopThread, core: checkpoint_consumer.CheckpointConsumer) -> None:
        super().__init__(thread, core, core.consumer)

    def receive(self, timeout_millis: int | None = None) -> Message:
        """Waits for the next message. Raises Timeout."""
        message = self._receive(timeout_millis)
        self._core.consumer.passed(message)
        return message

    def checkpoint(self) -> Checkpoint:
        """A consumer that starts there receives what comes after the messages received so far."""
        return self._core.checkpoint()
