"""A connection's producers and consumers, each with its topic."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from pybroker.base.errors import PulsarError
from pybroker.broker.client_topics import ServedSubscription, ServedTopic, may_be_stamped
from pybroker.broker.persistent.producers import Producer
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.subscriptions.consumer import Consumer
from pybroker.server.publishing.held_runs import HeldRuns
from pybroker.server.transactions.transactional_session import TransactionalSession
from pybroker.wire import commands
from pybroker.wire.frames import SendRun


class ProducerSlot(ABC):
    """A producer and its topic, as this connection knows them, and the way of its SENDs: see
    pybroker.server.publishing.sends.
    """

    __slots__ = ("held", "later_answers", "producer", "topic", "transactional_session")

    def __init__(self, topic: ServedTopic, producer: Producer) -> None:
        self.topic = topic
        self.producer = producer
        # Answers that must follow that of the last published run; None once it is answered.
        self.later_answers: list[Callable[[], None]] | None = None
        self.held: HeldRuns | None = None  # runs that may not be published yet
        self.transactional_session: TransactionalSession | None = None

    @abstractmethod
    def send(self, run: SendRun) -> None: ...

    @abstractmethod
    def refuse_in_order(self, run: SendRun, error: PulsarError) -> None: ...

    @abstractmethod
    async def sent_at_rate(self) -> None:
        """Waits until earlier messages that the publish rate holds are sent, for at most HOLD_S."""

    @abstractmethod
    async def all_answered(self) -> None: ...

    def forget_held(self) -> None:
        """Drops what is held: the client still has it and resends it after reconnecting."""
        if self.held is not None:
            self.held.take()
            self.held = None


class ConsumerSlot:
    __slots__ = ("_ledger", "_was_stamped", "consumer", "frames", "subscription", "topic")

    def __init__(
        self,
        topic: ServedTopic,
        subscription: ServedSubscription,
        consumer: Consumer,
        sees_entry_metadata: bool,
    ) -> None:
        self._ledger = None if sees_entry_metadata or not isinstance(topic, Topic) else topic.ledger
        self._was_stamped = may_be_stamped(topic)
        self.topic = topic
        self.subscription = subscription
        self.consumer = consumer
        self.frames = commands.MessageFrames(consumer.consumer_id, topic.name.partition)

    @property
    def plain_only(self) -> bool:
        """Whether to strip broker entry metadata. A topic's entries may begin to have it at any
        time, when a Kafka client uses the topic.
        """
        ledger = self._ledger
        return ledger is not None and (self._was_stamped or ledger.interceptor is not None)
