"""All policies, one row each: storage, resolution and routes are derived from it.

A row names the policy, its type, its default (from broker.conf), and its names in the admin API at
each level. Code that applies it looks it up by the row: `topic.policies[MESSAGE_TTL]`. Rows that
are `off` are stored and shown as in Apache Pulsar, with the reason why they have no effect; a test
checks that all others are used.
"""

from typing import Any, Final

from pybroker.base.configuration.config import STRATEGIES, BrokerConfig
from pybroker.broker.policies.auto_scale import AUTO_SCALE
from pybroker.broker.policies.bound_coordinators import TRANSACTION_COORDINATORS
from pybroker.broker.policies.deleted_keys import COMPACTION_DELETE_RETENTION
from pybroker.broker.policies.kept import KEPT, NO_BOOKIES, ONE_CLUSTER
from pybroker.broker.policies.kinds import (
    LONG,
    RefusedPolicy,
    by_name,
    choice,
    names,
    number,
    record,
    text,
    truth,
    whole,
)
from pybroker.broker.policies.policy import Key, Level, Policy, Record
from pybroker.broker.policies.shapes import (
    AGE,
    AUTO_UPDATE,
    CAUGHT_UP,
    DISPATCH_RATE_SHAPE,
    NO_SUBSCRIPTIONS,
    QUOTA,
    SIZE,
    SUBSCRIPTION_TYPES,
    bookies,
    dispatch_rate,
    no_contradiction,
    topic_creation,
)
from pybroker.broker.policies.transaction_buffers import TRANSACTION_BUFFER


def _rate(
    name: str, ns_field: str, topic_field: str, broker: Record, off: str = ""
) -> Policy[Record]:
    return Policy(
        name,
        DISPATCH_RATE_SHAPE,
        broker,
        Level(name, ns_field, by_cluster=True),
        Level(name, topic_field),
        off=off,
    )


def _limit(name: str, path: str, ns_field: str, topic_field: str, broker: str) -> Policy[int]:
    """A maximum number; 0 means no limit."""
    check = whole(too_small=f"{name} must be 0 or more")
    return Policy(name, check, broker, Level(name, ns_field), Level(path, topic_field))


def _default_quotas(config: BrokerConfig) -> Record:
    size = config.backlog_quota_default_limit_bytes
    if config.backlog_quota_default_limit_gb >= 0:
        size = int(config.backlog_quota_default_limit_gb * 1024**3)
    quota = {
        "limitSize": size,
        "limitTime": config.backlog_quota_default_limit_second,
        "policy": config.backlog_quota_default_retention_policy,
    }
    return {SIZE: QUOTA(quota), AGE: QUOTA(quota)}


def _inactivity(config: BrokerConfig) -> Record:
    longest = config.broker_delete_inactive_topics_max_inactive_duration_seconds
    return {
        "inactiveTopicDeleteMode": config.broker_delete_inactive_topics_mode,
        "maxInactiveDurationSeconds": longest
        or config.broker_delete_inactive_topics_frequency_seconds,
        "deleteWhileInactive": config.broker_delete_inactive_topics_enabled,
    }


# -- storage and delivery of messages

RETENTION: Final = Policy[Record](
    "retention",
    record(
        together=no_contradiction,
        retentionTimeInMinutes=(whole(-1), 0),
        retentionSizeInMB=(whole(-1, LONG // 1024**2), 0),
    ),
    {
        "retentionTimeInMinutes": Key("default_retention_time_in_minutes"),
        "retentionSizeInMB": Key("default_retention_size_in_mb"),
    },
    Level("retention", "retention_policies"),
    Level("retention", "retentionPolicies"),
)
MESSAGE_TTL: Final = Policy[int](
    "messageTTL",
    whole(),
    "ttl_duration_default_in_seconds",
    Level("messageTTL", "message_ttl_in_seconds"),
    Level("messageTTL", "messageTTLInSeconds", by_query=True),
)
BACKLOG_QUOTAS: Final = Policy[Record](
    "backlogQuota",
    by_name(QUOTA, SIZE, AGE),
    _default_quotas,
    Level("backlogQuota", "backlog_quota_map", unset={}, by_hand=True),
    Level("backlogQuota", "backLogQuotaMap", unset={}, by_hand=True),
    merged=True,
)
COMPACTION_THRESHOLD: Final = Policy[int](
    "compactionThreshold",
    whole(0, LONG),
    "broker_service_compaction_threshold_in_bytes",
    Level("compactionThreshold", "compaction_threshold", verb="PUT"),
    Level("compactionThreshold", "compactionThreshold"),
)
DELAYED_DELIVERY: Final = Policy[Record](
    "delayedDelivery",
    record(
        tickTime=(whole(1, LONG), 1000),
        active=(truth, False),
        maxDeliveryDelayInMillis=(whole(0, LONG), 0),
    ),
    {
        "tickTime": Key("delayed_delivery_tick_time_millis"),
        "active": Key("delayed_delivery_enabled"),
        "maxDeliveryDelayInMillis": Key("delayed_delivery_max_delay_in_millis"),
    },
    Level("delayedDelivery", "delayed_delivery_policies"),
    Level("delayedDelivery", "delayedDelivery"),
)
PERSISTENCE: Final = Policy[Record](
    "persistence",
    record(
        together=bookies,
        bookkeeperEnsemble=(whole(1), 2),
        bookkeeperWriteQuorum=(whole(1), 2),
        bookkeeperAckQuorum=(whole(1), 2),
        managedLedgerMaxMarkDeleteRate=(number, 1.0),
        managedLedgerStorageClassName=(text, None),
    ),
    {
        "bookkeeperEnsemble": Key("managed_ledger_default_ensemble_size"),
        "bookkeeperWriteQuorum": Key("managed_ledger_default_write_quorum"),
        "bookkeeperAckQuorum": Key("managed_ledger_default_ack_quorum"),
        "managedLedgerMaxMarkDeleteRate": Key("managed_ledger_default_mark_delete_rate_limit"),
    },
    Level("persistence", "persistence"),
    Level("persistence", "persistence"),
    off_fields={
        "bookkeeperEnsemble": NO_BOOKIES,
        "bookkeeperWriteQuorum": NO_BOOKIES,
        "bookkeeperAckQuorum": NO_BOOKIES,
        "managedLedgerStorageClassName": "there is one kind of storage",
    },
)

# -- deduplication

DEDUPLICATION: Final = Policy[bool](
    "deduplication",
    truth,
    "broker_deduplication_enabled",
    Level("deduplication", "deduplicationEnabled"),
    Level("deduplicationEnabled", "deduplicationEnabled"),
)
DEDUPLICATION_SNAPSHOT_INTERVAL: Final = Policy[int](
    "deduplicationSnapshotInterval",
    whole(),
    "broker_deduplication_snapshot_interval_seconds",
    Level("deduplicationSnapshotInterval", "deduplicationSnapshotIntervalSeconds"),
    Level("deduplicationSnapshotInterval", "deduplicationSnapshotIntervalSeconds"),
)

# -- rates

PUBLISH_RATE: Final = Policy[Record](
    "publishRate",
    record(
        publishThrottlingRateInMsg=(whole(-(2**31)), -1),
        publishThrottlingRateInByte=(whole(-LONG - 1, LONG), -1),
    ),
    {
        "publishThrottlingRateInMsg": Key("max_publish_rate_per_topic_in_messages"),
        "publishThrottlingRateInByte": Key("max_publish_rate_per_topic_in_bytes"),
    },
    Level("publishRate", "publishMaxMessageRate", by_cluster=True),
    Level("publishRate", "publishRate"),
)
DISPATCH_RATE: Final = _rate(
    "dispatchRate",
    "topicDispatchRate",
    "dispatchRate",
    dispatch_rate(
        "dispatch_throttling_rate_per_topic_in_msg", "dispatch_throttling_rate_per_topic_in_byte"
    ),
)
SUBSCRIPTION_DISPATCH_RATE: Final = _rate(
    "subscriptionDispatchRate",
    "subscriptionDispatchRate",
    "subscriptionDispatchRate",
    dispatch_rate(
        "dispatch_throttling_rate_per_subscription_in_msg",
        "dispatch_throttling_rate_per_subscription_in_byte",
    ),
)
REPLICATOR_DISPATCH_RATE: Final = _rate(
    "replicatorDispatchRate",
    "replicatorDispatchRate",
    "replicatorDispatchRate",
    dispatch_rate(
        "dispatch_throttling_rate_per_replicator_in_msg",
        "dispatch_throttling_rate_per_replicator_in_byte",
    ),
    off=ONE_CLUSTER,
)
SUBSCRIPTION_POLICIES: Final = Policy[Record](  # for single subscriptions, by name
    "subscriptionPolicies",
    by_name(record(dispatchRate=(DISPATCH_RATE_SHAPE, None))),
    lambda config: {},
    topic=Level("dispatchRate", "subscriptionPolicies", unset={}, by_hand=True),
)
SUBSCRIBE_RATE: Final = Policy[Record](
    "subscribeRate",
    record(
        subscribeThrottlingRatePerConsumer=(whole(-(2**31)), -1),
        ratePeriodInSecond=(whole(1), 30),
    ),
    {
        "subscribeThrottlingRatePerConsumer": Key("subscribe_throttling_rate_per_consumer"),
        "ratePeriodInSecond": Key("subscribe_rate_period_per_consumer_in_second"),
    },
    Level("subscribeRate", "clusterSubscribeRate", by_cluster=True),
    Level("subscribeRate", "subscribeRate"),
)

# -- limits

MAX_PRODUCERS: Final = _limit(
    "maxProducersPerTopic",
    "maxProducers",
    "max_producers_per_topic",
    "maxProducerPerTopic",
    "max_producers_per_topic",
)
MAX_CONSUMERS: Final = _limit(
    "maxConsumersPerTopic",
    "maxConsumers",
    "max_consumers_per_topic",
    "maxConsumerPerTopic",
    "max_consumers_per_topic",
)
MAX_CONSUMERS_PER_SUBSCRIPTION: Final = _limit(
    "maxConsumersPerSubscription",
    "maxConsumersPerSubscription",
    "max_consumers_per_subscription",
    "maxConsumersPerSubscription",
    "max_consumers_per_subscription",
)
MAX_SUBSCRIPTIONS: Final = _limit(
    "maxSubscriptionsPerTopic",
    "maxSubscriptionsPerTopic",
    "max_subscriptions_per_topic",
    "maxSubscriptionsPerTopic",
    "max_subscriptions_per_topic",
)
MAX_UNACKED_PER_CONSUMER: Final = _limit(
    "maxUnackedMessagesPerConsumer",
    "maxUnackedMessagesOnConsumer",
    "max_unacked_messages_per_consumer",
    "maxUnackedMessagesOnConsumer",
    "max_unacked_messages_per_consumer",
)
MAX_UNACKED_PER_SUBSCRIPTION: Final = _limit(
    "maxUnackedMessagesPerSubscription",
    "maxUnackedMessagesOnSubscription",
    "max_unacked_messages_per_subscription",
    "maxUnackedMessagesOnSubscription",
    "max_unacked_messages_per_subscription",
)
MAX_TOPICS: Final = Policy[int](
    "maxTopicsPerNamespace",
    whole(too_small="maxTopicsPerNamespace must be 0 or more"),
    "max_topics_per_namespace",
    Level("maxTopicsPerNamespace", "max_topics_per_namespace"),
)
MAX_MESSAGE_SIZE: Final = Policy[int](
    "maxMessageSize",
    whole(),
    lambda config: 0,  # the connection enforces broker.conf's limit
    topic=Level("maxMessageSize", "maxMessageSize"),
)

# -- transactions

TRANSACTION_LIMITS: Final = Policy[Record](
    "transactionLimits",
    record(
        maxOpenTransactions=(whole(), None),
        maxOpenMessages=(whole(0, LONG), None),
        maxOpenBytes=(whole(0, LONG), None),
        maxOpenMessagesPerTopic=(whole(0, LONG), None),
        maxOpenBytesPerTopic=(whole(0, LONG), None),
        maxTimeoutMs=(whole(0, LONG), None),
        abortOnDisconnect=(truth, None),
    ),
    {
        "maxOpenTransactions": Key("max_active_transactions_per_namespace"),
        "maxOpenMessages": Key("max_open_transaction_messages_per_namespace"),
        "maxOpenBytes": Key("max_open_transaction_bytes_per_namespace"),
        "maxOpenMessagesPerTopic": Key("max_open_transaction_messages_per_topic"),
        "maxOpenBytesPerTopic": Key("max_open_transaction_bytes_per_topic"),
        "maxTimeoutMs": Key("max_transaction_timeout_ms_per_namespace"),
        "abortOnDisconnect": Key("transaction_abort_on_disconnect"),
    },
    Level("transactionLimits", "transaction_limits"),
    merged=True,
)

# -- automatic creation and deletion

AUTO_TOPIC_CREATION: Final = Policy[Record](
    "autoTopicCreation",
    record(
        together=topic_creation,
        allowAutoTopicCreation=(truth, None),
        topicType=(text, None),
        defaultNumPartitions=(whole(-(2**31)), None),
    ),
    {
        "allowAutoTopicCreation": Key("allow_auto_topic_creation"),
        "topicType": Key("allow_auto_topic_creation_type"),
        "defaultNumPartitions": Key("default_num_partitions"),
    },
    Level("autoTopicCreation", "autoTopicCreationOverride"),
)
AUTO_SUBSCRIPTION_CREATION: Final = Policy[Record](
    "autoSubscriptionCreation",
    record(allowAutoSubscriptionCreation=(truth, False)),
    {"allowAutoSubscriptionCreation": Key("allow_auto_subscription_creation")},
    Level("autoSubscriptionCreation", "autoSubscriptionCreationOverride"),
    Level("autoSubscriptionCreation", "autoSubscriptionCreationOverride"),
)
INACTIVE_TOPICS: Final = Policy[Record](
    "inactiveTopicPolicies",
    record(
        inactiveTopicDeleteMode=(choice(NO_SUBSCRIPTIONS, CAUGHT_UP), NO_SUBSCRIPTIONS),
        maxInactiveDurationSeconds=(whole(1), 60),
        deleteWhileInactive=(truth, False),
    ),
    _inactivity,
    Level("inactiveTopicPolicies", "inactive_topic_policies"),
    Level("inactiveTopicPolicies", "inactiveTopicPolicies"),
)
SUBSCRIPTION_EXPIRY: Final = Policy[int](
    "subscriptionExpirationTime",
    whole(too_small="Invalid value for subscription expiration time"),
    "subscription_expiration_time_minutes",
    Level("subscriptionExpirationTime", "subscription_expiration_time_minutes"),
    Level("subscriptionExpirationTime", "subscriptionExpirationTimeInMinutes", by_query=True),
)

# -- permitted clients

SUBSCRIPTION_TYPES_ENABLED: Final = Policy[list[str]](
    "subscriptionTypesEnabled",
    names(*SUBSCRIPTION_TYPES),
    lambda config: [t.strip() for t in config.subscription_types_enabled.split(",") if t.strip()],
    Level("subscriptionTypesEnabled", "subscription_types_enabled", unset=[]),
    Level("subscriptionTypesEnabled", "subscriptionTypesEnabled"),
)
ENCRYPTION_REQUIRED: Final = Policy[bool](
    "encryptionRequired",
    truth,
    "encryption_require_on_producer",
    Level("encryptionRequired", "encryption_required", unset=False, removable=False),
)

SUBSCRIPTION_AUTH_MODE: Final = Policy[str](
    "subscriptionAuthMode",
    choice("None", "Prefix"),
    lambda config: "None",
    Level("subscriptionAuthMode", "subscription_auth_mode", unset="None", removable=False),
)

# -- schemas

SCHEMA_COMPATIBILITY: Final = Policy[str](
    "schemaCompatibilityStrategy",
    choice(*STRATEGIES),
    "schema_compatibility_strategy",
    Level(
        "schemaCompatibilityStrategy",
        "schema_compatibility_strategy",
        verb="PUT",
        unset="UNDEFINED",
        removable=False,
    ),
    Level("schemaCompatibilityStrategy", "schemaCompatibilityStrategy", verb="PUT"),
)
SCHEMA_AUTO_UPDATE_STRATEGY: Final = Policy[str | None](  # an older name for compatibility
    "schemaAutoUpdateCompatibilityStrategy",
    choice(*AUTO_UPDATE),
    lambda config: None,
    Level(
        "schemaAutoUpdateCompatibilityStrategy",
        "schema_auto_update_compatibility_strategy",
        verb="PUT",
        removable=False,
    ),
)
SCHEMA_ENFORCED: Final = Policy[bool](
    "schemaValidationEnforced",
    truth,
    "is_schema_validation_enforced",
    Level("schemaValidationEnforced", "schema_validation_enforced", unset=False, removable=False),
    Level("schemaValidationEnforced", "schemaValidationEnforced", removable=False),
)
SCHEMA_AUTO_UPDATE: Final = Policy[bool](
    "isAllowAutoUpdateSchema",
    truth,
    "is_allow_auto_update_schema_enabled",
    Level("isAllowAutoUpdateSchema", "is_allow_auto_update_schema", removable=False),
)

POLICIES: Final[tuple[Policy[Any], ...]] = (
    RETENTION,
    MESSAGE_TTL,
    BACKLOG_QUOTAS,
    COMPACTION_THRESHOLD,
    COMPACTION_DELETE_RETENTION,
    DELAYED_DELIVERY,
    PERSISTENCE,
    DEDUPLICATION,
    DEDUPLICATION_SNAPSHOT_INTERVAL,
    PUBLISH_RATE,
    DISPATCH_RATE,
    SUBSCRIPTION_DISPATCH_RATE,
    REPLICATOR_DISPATCH_RATE,
    SUBSCRIPTION_POLICIES,
    SUBSCRIBE_RATE,
    MAX_PRODUCERS,
    MAX_CONSUMERS,
    MAX_CONSUMERS_PER_SUBSCRIPTION,
    MAX_SUBSCRIPTIONS,
    MAX_UNACKED_PER_CONSUMER,
    MAX_UNACKED_PER_SUBSCRIPTION,
    MAX_TOPICS,
    MAX_MESSAGE_SIZE,
    TRANSACTION_LIMITS,
    AUTO_TOPIC_CREATION,
    AUTO_SUBSCRIPTION_CREATION,
    AUTO_SCALE,
    INACTIVE_TOPICS,
    SUBSCRIPTION_EXPIRY,
    SUBSCRIPTION_TYPES_ENABLED,
    ENCRYPTION_REQUIRED,
    SUBSCRIPTION_AUTH_MODE,
    SCHEMA_COMPATIBILITY,
    SCHEMA_AUTO_UPDATE_STRATEGY,
    SCHEMA_ENFORCED,
    SCHEMA_AUTO_UPDATE,
    TRANSACTION_BUFFER,
    TRANSACTION_COORDINATORS,
    *KEPT,
)
BY_NAME: Final = {policy.name: policy for policy in POLICIES}


def check_together(found: Record) -> None:
    """Checks values set at one level, by policy name: retention must exceed the backlog quotas, or
    it would release what a quota still counts. Raises RefusedPolicy.
    """
    retention, quotas = found.get(RETENTION.name), found.get(BACKLOG_QUOTAS.name, {})
    if not retention:
        return
    size_bytes = retention["retentionSizeInMB"] * 1024**2
    time_s = retention["retentionTimeInMinutes"] * 60
    for quota in quotas.values():
        if 0 < size_bytes <= quota["limitSize"] or 0 < time_s <= quota["limitTime"]:
            raise RefusedPolicy(
                "Retention Quota must exceed configured backlog quota: raise the retention, or "
                "lower the backlog quota"
            )
