"""Checks which topics and subscriptions may take part in transactions, and ends transactions there.

A participant must be able to end the transaction, so names are checked when they are added. Older
logs may contain names that fail the check: for these the coordinator gets CannotParticipate, which
is final.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from pybroker.base.errors import InvalidTopicName, NotAllowed, ServiceNotReady
from pybroker.base.names import KAFKA_OFFSETS, TopicName, TxnId, check_subscription_name
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.bound_coordinators import TRANSACTION_COORDINATORS, check_coordinator
from pybroker.broker.policies.policies import Policies
from pybroker.broker.transactions.waiting_ends import WaitingEnds
from pybroker.transaction.coordinator.ends.participants import (
    CannotParticipate,
    Ending,
    TransactionEnd,
)
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TxnAction

EndOnTopic = Callable[[Topic], Ending]
# Ends a transaction in a group of Kafka's: its log, the group, the action, and `not_later`.
EndInGroup = Callable[[TxnId, str, str, TxnAction, bool], Ending]


class LoadsTopics(Protocol):
    def serving(self, name: TopicName) -> Topic | None:
        """The topic if it is loaded and not closing."""
        ...

    def unloading(self, name: TopicName) -> bool:
        """Whether the topic is loaded and closing."""
        ...

    async def settled(self, name: TopicName) -> None:
        """Returns when the topic is not closing any more."""
        ...

    def exists(self, name: TopicName) -> bool: ...

    async def get(self, name: TopicName) -> Topic | None:
        """Loads the topic if necessary; None if it does not exist."""
        ...


class ChecksTopics(Protocol):
    def check_usable(self, name: TopicName) -> None: ...
    @property
    def policies(self) -> Policies: ...


def check_may_join(policies: Policies, txn_id: TxnId, namespace: str) -> None:
    """Raises BoundElsewhere if only other coordinators' transactions may take part."""
    allowed = policies.of_namespace(namespace)[TRANSACTION_COORDINATORS]
    if allowed:  # seldom
        check_coordinator(allowed, namespace, txn_id.most)


def partition_to_add(topics: ChecksTopics, txn_id: TxnId, topic: str) -> str:
    """Returns the topic's name as the client sent it, because transactions show it. Raises
    InvalidTopicName, NotAllowed, NotFound, BoundElsewhere.
    """
    name = TopicName.parse(topic)
    if not name.persistent:
        raise NotAllowed(f"{name} cannot take part in a transaction: it is not persistent")
    topics.check_usable(name)
    check_may_join(topics.policies, txn_id, name.namespace_name)
    return topic


def subscription_to_add(
    topics: ChecksTopics, txn_id: TxnId, topic: str, subscription: str
) -> tuple[str, str]:
    """Like `partition_to_add`, with the subscription's name."""
    check_subscription_name(subscription)
    return partition_to_add(topics, txn_id, topic), subscription


class LocalParticipants:
    """Implements transaction.participants.Participants.

    Ends on a topic that is not loaded wait for it, and begin in the order in which they came: a
    topic in commit order shows the transactions in that order. Later ends queue behind them.

    Ends that come while a topic is closing fail when it is closed: earlier ones, interrupted by the
    closing, must go before them. Their coordinator repeats all of them in order.
    """

    def __init__(self, topics: LoadsTopics) -> None:
        self._topics = topics
        self.end_in_group: EndInGroup = no_group
        self._waiting = WaitingEnds("participants", self._loaded)
        self._closing = set[TopicName]()  # their ends wait until they are closed, and fail

    async def close(self) -> None:
        """Fail the ends that wait for a topic; their coordinators repeat them."""
        await self._waiting.close()

    def end_on_partition(self, end: TransactionEnd, topic: str, not_later: bool = False) -> Ending:
        """A deleted topic has no messages left: there is nothing to end."""
        name = participant_name(topic)
        if (serving := self._serving(name)) is not None:
            return serving.end_transaction(*end, not_later)
        return self._when_loaded(name, lambda loaded: loaded.end_transaction(*end), not_later)

    def end_on_subscription(
        self, end: TransactionEnd, topic: str, subscription: str, not_later: bool = False
    ) -> Ending:
        if topic.startswith(KAFKA_OFFSETS):
            return self.end_in_group(end.txn_id, topic, subscription, end.action, not_later)
        name = participant_name(topic)
        if (serving := self._serving(name)) is not None:
            found = serving.subscriptions.get(subscription)
            if found is None:
                return None
            return found.end_transaction(end.txn_id, end.action, not_later)

        def end_loaded(loaded: Topic) -> Ending:
            found = loaded.subscriptions.get(subscription)
            return None if found is None else found.end_transaction(end.txn_id, end.action)

        return self._when_loaded(name, end_loaded, not_later)

    def _serving(self, name: TopicName) -> Topic | None:
        """The topic if an end can begin on it at once."""
        return None if name in self._waiting else self._topics.serving(name)

    def _when_loaded(self, name: TopicName, end: EndOnTopic, not_later: bool) -> Ending:
        if name not in self._waiting and not self._topics.exists(name):
            return None
        if not_later:
            raise WouldWait
        if name not in self._waiting and self._topics.unloading(name):
            self._closing.add(name)
        return self._waiting.add(name, lambda loaded: None if loaded is None else end(loaded))

    async def _loaded(self, name: TopicName) -> Topic | None:
        """The topic; None if it was deleted. Raises ServiceNotReady when it has been closed."""
        if name in self._closing:
            try:
                await self._topics.settled(name)
            finally:
                self._closing.discard(name)
            raise ServiceNotReady(f"{name} was unloaded; try again")
        return await self._topics.get(name)


def no_group(txn_id: TxnId, log: str, group: str, action: TxnAction, not_later: bool) -> Ending:
    """There are no groups of Kafka's."""


@lru_cache(maxsize=1000)
def participant_name(topic: str) -> TopicName:
    """Raises CannotParticipate for a name that no topic can ever have."""
    try:
        name = TopicName.parse(topic)
    except InvalidTopicName as error:
        raise CannotParticipate(str(error)) from error
    if name.internal:
        raise CannotParticipate(f"{name} is a transaction log, not a topic")
    return name


@lru_cache(maxsize=1000)
def subscription_place(topic: str) -> TopicName:
    """The topic of a subscription, or the log of a group of Kafka's, by whose name its broker is
    found. Raises CannotParticipate.
    """
    return TopicName.parse(topic) if topic.startswith(KAFKA_OFFSETS) else participant_name(topic)
