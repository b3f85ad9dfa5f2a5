"""How many producers, consumers and subscriptions a topic may have, and of which types. Checked
when a client connects. The errors are Apache Pulsar's.
"""

from collections.abc import Mapping, Sized
from typing import Final, Protocol

from pybroker.base.errors import ConsumerBusy, MetadataError, NotAllowed, ProducerBusy
from pybroker.base.names import TopicName
from pybroker.broker.dispatch.shared import UnackedLimits
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.table import (
    ENCRYPTION_REQUIRED,
    MAX_CONSUMERS,
    MAX_CONSUMERS_PER_SUBSCRIPTION,
    MAX_PRODUCERS,
    MAX_SUBSCRIPTIONS,
    MAX_UNACKED_PER_CONSUMER,
    MAX_UNACKED_PER_SUBSCRIPTION,
    SUBSCRIPTION_TYPES_ENABLED,
)
from pybroker.broker.subscriptions.consumer import SubscriptionType

TYPE_NAMES: Final = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}


class Quota(Protocol):
    """A topic's backlog quota."""

    async def check(self) -> None:
        """Checks whether a producer may connect. Raises QuotaExceededError,
        QuotaExceededException.
        """
        ...


class Consumed(Protocol):
    @property
    def consumers(self) -> Sized: ...


class Limited(Protocol):
    @property
    def name(self) -> TopicName: ...
    @property
    def quota(self) -> Quota | None: ...
    @property
    def policies(self) -> Effective: ...
    @property
    def producers(self) -> Sized: ...
    @property
    def subscriptions(self) -> Mapping[str, Consumed]: ...


def check_encrypts(topic: Limited, encrypts: bool) -> None:
    """Checks whether a producer with or without encryption may connect. Raises MetadataError."""
    if topic.policies[ENCRYPTION_REQUIRED] and not encrypts:
        raise unencrypted(topic.name)


def unencrypted(topic: TopicName) -> MetadataError:
    return MetadataError(f"Encryption is required in {topic}")


async def check_producers(topic: Limited, encrypts: bool) -> None:
    """Checks whether another producer may connect. Valid in the turn in which it returns. Raises
    ProducerBusy, QuotaExceededError, QuotaExceededException, MetadataError.
    """
    if topic.quota is not None:
        await topic.quota.check()
    check_encrypts(topic, encrypts)
    limit = topic.policies[MAX_PRODUCERS]
    if 0 < limit <= len(topic.producers) and not topic.name.system:
        raise ProducerBusy(f"Topic '{topic.name}' reached max producers limit")


def check_consumers(topic: Limited, subscription: Consumed) -> None:
    """Raises ConsumerBusy if there is no room for another consumer."""
    limit = topic.policies[MAX_CONSUMERS_PER_SUBSCRIPTION]
    if 0 < limit <= len(subscription.consumers):
        raise ConsumerBusy("Subscription reached max consumers limit")
    limit = topic.policies[MAX_CONSUMERS]
    if limit <= 0 or topic.name.system:
        return
    if sum(len(each.consumers) for each in topic.subscriptions.values()) >= limit:
        raise ConsumerBusy("Topic reached max consumers limit")


def check_subscriptions(topic: Limited) -> None:
    """Raises NotAllowed if there is no room for another subscription."""
    limit = topic.policies[MAX_SUBSCRIPTIONS]
    if 0 < limit <= len(topic.subscriptions) and not topic.name.system:
        raise NotAllowed(f"Exceed the maximum number of subscriptions of the topic: {topic.name}")


def unacked_limits(policies: Effective) -> UnackedLimits:
    """How many delivered messages may be unacknowledged."""
    return UnackedLimits(policies[MAX_UNACKED_PER_CONSUMER], policies[MAX_UNACKED_PER_SUBSCRIPTION])


def check_type(topic: Limited, kind: SubscriptionType) -> None:
    """Raises NotAllowed if the topic does not allow subscriptions of this type."""
    enabled = topic.policies[SUBSCRIPTION_TYPES_ENABLED]
    if enabled and TYPE_NAMES[kind] not in enabled:
        raise NotAllowed(f"Topic[{{{topic.name}}}] doesn't support {TYPE_NAMES[kind]} sub type!")
