"""Topics that clients use, persistent or not."""

from pybroker.base.errors import NotAllowed
from pybroker.broker.entry_metadata import is_stamped
from pybroker.broker.nonpersistent.subscription import NonPersistentSubscription
from pybroker.broker.nonpersistent.topic import NonPersistentTopic
from pybroker.broker.subscription import Subscription
from pybroker.broker.topic import Topic

ServedTopic = Topic | NonPersistentTopic
ServedSubscription = Subscription | NonPersistentSubscription


def may_be_stamped(topic: ServedTopic) -> bool:
    """Whether the topic may have entries with broker entry metadata."""
    return isinstance(topic, Topic) and is_stamped(topic.ledger)


def persistent(topic: ServedTopic) -> Topic:
    """For operations that need a log. Raises NotAllowed for a non-persistent topic."""
    if isinstance(topic, NonPersistentTopic):
        raise NotAllowed(
            f"{topic.name} is not persistent and stores no messages: this operation does not apply"
        )
    return topic
