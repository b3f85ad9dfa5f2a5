"""Topics that clients use, persistent or not."""

from pybroker.base.errors import NotAllowed
from pybroker.broker.nonpersistent.subscription import NonPersistentSubscription
from pybroker.broker.nonpersistent.topic import NonPersistentTopic
from pybroker.broker.persistent.entry_metadata import has_offsets, is_stamped
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.subscriptions.subscription import Subscription

ServedTopic = Topic | NonPersistentTopic
ServedSubscription = Subscription | NonPersistentSubscription


def may_be_stamped(topic: ServedTopic) -> bool:
    """Whether the topic may have entries with broker entry metadata."""
    return isinstance(topic, Topic) and is_stamped(topic.ledger)


def used_by_kafka(topic: ServedTopic) -> bool:
    """Whether Kafka's clients use or used the topic; they leave no subscriptions behind."""
    return isinstance(topic, Topic) and has_offsets(topic.ledger)


def persistent(topic: ServedTopic) -> Topic:
    """For operations that need a log. Raises NotAllowed for a non-persistent topic."""
    if isinstance(topic, NonPersistentTopic):
        raise NotAllowed(
            f"{topic.name} is not persistent and stores no messages: this operation does not apply"
        )
    return topic
