"""Who acts on policies that concern a topic as a whole, a file each.

What is asked when somebody comes (how many there may be, of which types) is asked of
`topic.policies` at that moment: see limits. These are told.
"""

from managed_ledger.housekeeper import Housekeeper
from pybroker.broker.compaction.compacting import CompactedTopics
from pybroker.broker.policies.dispatch_rate import DispatchRates
from pybroker.broker.policies.encryption import EncryptedProducers
from pybroker.broker.policies.following import Actor
from pybroker.broker.policies.gate import Gates
from pybroker.broker.policies.retention import KeptMessages
from pybroker.broker.policies.subscribe_rate import SubscribeLimits
from pybroker.broker.served import ServedTopic
from pybroker.broker.topic import Topic
from pybroker.runtime import Clock


class Subscriptions:
    """They look for themselves; what they share comes first."""

    def __init__(self) -> None:
        self._rates = DispatchRates()

    def follow(self, topic: ServedTopic) -> None:
        if isinstance(topic, Topic):
            self._rates.follow(topic)
            for subscription in topic.subscriptions.values():
                subscription.follow_policies()


def acting(housekeeper: Housekeeper, clock: Clock) -> tuple[Actor, ...]:
    return (
        KeptMessages(),
        CompactedTopics(),
        Gates(),
        EncryptedProducers(),
        SubscribeLimits(),
        Subscriptions(),
    )
