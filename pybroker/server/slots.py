"""A connection's producers and consumers, each with its topic."""

from collections.abc import Callable

from pybroker.broker.consumer import Consumer
from pybroker.broker.producers import Producer
from pybroker.broker.served import ServedSubscription, ServedTopic, may_be_stamped
from pybroker.server.held_runs import HeldRuns
from pybroker.server.transactional_session import TransactionalSession
from pybroker.wire import commands


class ProducerSlot:
    """A producer and its topic, as this connection knows them."""

    __slots__ = ("behind", "held", "producer", "session", "topic")

    def __init__(self, topic: ServedTopic, producer: Producer) -> None:
        self.topic = topic
        self.producer = producer
        # Answers that must follow that of the last published run; None once it is answered.
        self.behind: list[Callable[[], None]] | None = None
        self.held: HeldRuns | None = None  # runs that may not be published yet
        self.session: TransactionalSession | None = None  # if it has a transactional id

    def forget_held(self) -> None:
        """Drops what is held: the client still has it and resends it after reconnecting."""
        if self.held is not None:
            self.held.take()
            self.held = None


class ConsumerSlot:
    __slots__ = ("consumer", "frames", "plain_only", "subscription", "topic")

    def __init__(
        self,
        topic: ServedTopic,
        subscription: ServedSubscription,
        consumer: Consumer,
        sees_entry_metadata: bool,
    ) -> None:
        # Whether to strip broker entry metadata, which some entries of this topic have.
        self.plain_only = may_be_stamped(topic) and not sees_entry_metadata
        self.topic = topic
        self.subscription = subscription
        self.consumer = consumer
        self.frames = commands.MessageFrames(consumer.consumer_id, topic.name.partition)
