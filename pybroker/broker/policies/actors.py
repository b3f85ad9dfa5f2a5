"""The actors for policies that concern a topic as a whole, one file each.

Limits that apply when a client connects (how many, which types) are read from `topic.policies` at
that moment: see limits. Actors, in contrast, are notified of changes.
"""

from managed_ledger.housekeeper import Housekeeper
from managed_ledger.storage.fullness import EntryLimit
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.runtime import Clock
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.compaction.compacting import CompactedTopics
from pybroker.broker.deduplication.deduplication import USUAL_INTERVAL_S
from pybroker.broker.dispatch.delayed_account import DelayedAccount
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.persistent.topic_measures import TopicMeasures
from pybroker.broker.policies.dispatch_rate import DispatchRates
from pybroker.broker.policies.encryption import EncryptedProducers
from pybroker.broker.policies.expiry import MessageExpiry
from pybroker.broker.policies.following import Actor
from pybroker.broker.policies.gate import Gates
from pybroker.broker.policies.persistence import WrittenCursors
from pybroker.broker.policies.quotas import BacklogQuotas
from pybroker.broker.policies.retention import KeptMessages
from pybroker.broker.policies.subscribe_rate import SubscribeLimits
from pybroker.broker.policies.subscription_expiry import SubscriptionExpiry
from pybroker.broker.policies.table import DEDUPLICATION_SNAPSHOT_INTERVAL
from pybroker.broker.policies.transaction_buffers import COMMIT_ORDER, TRANSACTION_BUFFER


class Subscriptions:
    """Subscriptions apply policies themselves; what they share is updated first."""

    def __init__(self) -> None:
        self._rates = DispatchRates()
        self._delayed = DelayedAccount()

    def follow(self, topic: ServedTopic) -> None:
        if isinstance(topic, Topic):
            topic.delayed_account = self._delayed
            self._rates.follow(topic)
            for subscription in topic.subscriptions.values():
                subscription.dispatch.follow_policies()


class DeduplicationIntervals:
    def follow(self, topic: ServedTopic) -> None:
        if topic.deduplication is not None:
            interval_s = topic.policies[DEDUPLICATION_SNAPSHOT_INTERVAL]
            topic.deduplication.interval_s = interval_s or USUAL_INTERVAL_S


class TransactionBuffers:
    def follow(self, topic: ServedTopic) -> None:
        if isinstance(topic, Topic):
            topic.buffer.in_commit_order = topic.policies[TRANSACTION_BUFFER] == COMMIT_ORDER


def acting(
    housekeeper: Housekeeper,
    clock: Clock,
    config: BrokerConfig,
    measures: TopicMeasures,
    entry_limit: EntryLimit,
) -> tuple[Actor, ...]:
    quota_interval_s = config.backlog_quota_check_interval_in_seconds
    return (
        KeptMessages(),
        WrittenCursors(),
        CompactedTopics(),
        Gates(entry_limit),
        EncryptedProducers(),
        SubscribeLimits(),
        Subscriptions(),
        DeduplicationIntervals(),
        TransactionBuffers(),
        MessageExpiry(housekeeper, clock, config.message_expiry_check_interval_in_minutes * 60),
        BacklogQuotas(housekeeper, clock, quota_interval_s, measures.evictions),
        SubscriptionExpiry(housekeeper, config.subscription_expiry_check_interval_in_minutes * 60),
    )
