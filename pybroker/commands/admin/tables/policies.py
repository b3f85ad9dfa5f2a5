"""Commands for policies: get-…, set-… and remove-… of namespaces and topics, one row each.

A row contains only what the command line needs: the policy's name in commands, and the options that
make its value. The broker's own table has the path, the method, and whether the policy can be
removed.
"""

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pybroker.broker.policies.policy import Level
from pybroker.broker.policies.table import BY_NAME
from pybroker.commands.admin.command import Body, Command
from pybroker.commands.admin.values import megabytes, minutes


@dataclass(frozen=True, slots=True)
class At:
    """A policy at a level: its name in commands, its name in the broker's table, and the options
    that set it.

    `also` are further names in the group `topics`. `by_query` is the option with the value, for a
    policy that a query parameter sets. `verbs` are the commands that pulsar-admin has.
    """

    name: str
    policy: str
    options: str = ""
    body: Body | None = None
    also: tuple[str, ...] = ()
    by_query: str = ""
    verbs: tuple[str, ...] = ("get", "set", "remove")
    get_path: str = ""
    query: dict[str, str] = field(default_factory=dict)  # for set and remove


def value(name: str) -> Body:
    return lambda options: getattr(options, name)


def fields(**by_field: Any) -> Body:
    """Makes a JSON object: each field has the value of the option of that name, or of (name,
    default).
    """

    def body(options: Namespace) -> dict[str, Any]:
        found = {}
        for json_field, option in by_field.items():
            name, default = option if isinstance(option, tuple) else (option, None)
            said = getattr(options, name)
            found[json_field] = default if said is None else said
        return found

    return body


def switched(options: Namespace) -> bool:
    """The value of --enable or --disable. Raises ValueError unless exactly one is given."""
    enable, disable = options.enable, getattr(options, "disable", not options.enable)
    if enable == disable:
        raise ValueError("Give either --enable or --disable")
    return bool(enable)


def _inactive(options: Namespace) -> dict[str, Any]:
    if options.enable_delete_while_inactive == options.disable_delete_while_inactive:
        raise ValueError(
            "Give either --enable-delete-while-inactive or --disable-delete-while-inactive"
        )
    return {
        "inactiveTopicDeleteMode": options.delete_mode,
        "maxInactiveDurationSeconds": options.max_inactive_duration,
        "deleteWhileInactive": options.enable_delete_while_inactive,
    }


def _retention(options: Namespace) -> dict[str, int]:
    return {
        "retentionTimeInMinutes": minutes(options.time),
        "retentionSizeInMB": megabytes(options.size),
    }


def _delayed(options: Namespace) -> dict[str, Any]:
    return {
        "active": switched(options),
        "tickTime": 1000 * (1 if options.time is None else options.time),
        "maxDeliveryDelayInMillis": 1000 * (options.maxDelay or 0),
    }


def _topic_creation(options: Namespace) -> dict[str, Any]:
    allowed, body = switched(options), {}
    if allowed:
        body = {"topicType": options.type or "non-partitioned"}
        if options.num_partitions is not None:
            body["defaultNumPartitions"] = options.num_partitions
    return {"allowAutoTopicCreation": allowed, **body}


def _quota(options: Namespace) -> dict[str, Any]:
    return {
        "limitSize": -1 if options.limit is None else options.limit,
        "limitTime": -1 if options.limitTime is None else options.limitTime,
        "policy": options.policy,
    }


def _transactions(options: Namespace) -> dict[str, Any]:
    """Options that are not given keep the values of broker.conf."""
    said = {name: getattr(options, option) for option, name in _TRANSACTION_FIELDS.items()}
    return {name: value for name, value in said.items() if value}


def auto_scale(options: Namespace) -> dict[str, Any]:
    """The fields as they were given: `--set maxSegments=8 --set enabled=false`. Raises
    ValueError.
    """
    return {name: json.loads(text) for name, text in options.set}


def _offload(options: Namespace) -> dict[str, Any]:
    return {"managedLedgerOffloadDriver": options.driver} | {
        name: getattr(options, option)
        for option, name in _OFFLOAD_FIELDS.items()
        if getattr(options, option) is not None
    }


_OFFLOAD_FIELDS: Final = {
    "region": "managedLedgerOffloadRegion",
    "bucket": "managedLedgerOffloadBucket",
    "endpoint": "managedLedgerOffloadServiceEndpoint",
}
_OFFLOAD: Final = (
    "-d|--driver String [-r|--region String] [-b|--bucket String] [-e|--endpoint String]"
)
_SWITCH: Final = "[--enable|-e] [--disable|-d]"
_DISPATCH: Final = (
    "[--msg-dispatch-rate|-md int] [--byte-dispatch-rate|-bd long] "
    "[--dispatch-rate-period|-dt int] [--relative-to-publish-rate|-rp]"
)
_DISPATCH_BODY: Final = fields(
    dispatchThrottlingRateInMsg=("msg_dispatch_rate", -1),
    dispatchThrottlingRateInByte=("byte_dispatch_rate", -1),
    ratePeriodInSecond=("dispatch_rate_period", 1),
    relativeToPublishRate="relative_to_publish_rate",
)
_REPLICATOR: Final = (
    "[--msg-dispatch-rate|-md int] [--byte-dispatch-rate|-bd long] [--dispatch-rate-period|-dt int]"
)
_REPLICATOR_BODY: Final = fields(
    dispatchThrottlingRateInMsg=("msg_dispatch_rate", -1),
    dispatchThrottlingRateInByte=("byte_dispatch_rate", -1),
    ratePeriodInSecond=("dispatch_rate_period", 1),
)
_SUBSCRIBE: Final = "[--subscribe-rate|-sr int] [--subscribe-rate-period|-st int]"
_SUBSCRIBE_BODY: Final = fields(
    subscribeThrottlingRatePerConsumer=("subscribe_rate", -1),
    ratePeriodInSecond=("subscribe_rate_period", 30),
)
_PUBLISH: Final = "[--msg-publish-rate|-m int] [--byte-publish-rate|-b long]"
_PUBLISH_BODY: Final = fields(
    publishThrottlingRateInMsg=("msg_publish_rate", -1),
    publishThrottlingRateInByte=("byte_publish_rate", -1),
)
_PERSISTENCE: Final = (
    "[-e|--bookkeeper-ensemble int] [-w|--bookkeeper-write-quorum int] "
    "[-a|--bookkeeper-ack-quorum int] [-r|--ml-mark-delete-max-rate double] "
    "[-c|--ml-storage-class String]"
)
_PERSISTENCE_BODY: Final = fields(
    bookkeeperEnsemble=("bookkeeper_ensemble", 2),
    bookkeeperWriteQuorum=("bookkeeper_write_quorum", 2),
    bookkeeperAckQuorum=("bookkeeper_ack_quorum", 2),
    managedLedgerMaxMarkDeleteRate=("ml_mark_delete_max_rate", 0),
    managedLedgerStorageClassName="ml_storage_class",
)
_INACTIVE: Final = (
    "[--enable-delete-while-inactive|-e] [--disable-delete-while-inactive|-d] "
    "--max-inactive-duration|-t Seconds --delete-mode|-m String"
)
_DELAYED: Final = _SWITCH + " [--time|-t Seconds] [--maxDelay|-md Seconds]"
_QUOTA: Final = "[-l|--limit Bytes] [-lt|--limitTime Seconds] -p|--policy String [-t|--type String]"
_QUOTA_QUERY: Final = {"backlogQuotaType": "type"}
_TRANSACTION_FIELDS: Final = {
    "max_open_transactions": "maxOpenTransactions",
    "max_open_messages": "maxOpenMessages",
    "max_open_bytes": "maxOpenBytes",
    "max_open_messages_per_topic": "maxOpenMessagesPerTopic",
    "max_open_bytes_per_topic": "maxOpenBytesPerTopic",
    "max_timeout_ms": "maxTimeoutMs",
    "abort_on_disconnect": "abortOnDisconnect",
}
_TRANSACTIONS: Final = (
    "[--max-open-transactions|-t int] [--max-open-messages|-m long] [--max-open-bytes|-b long] "
    "[--max-open-messages-per-topic|-mp long] [--max-open-bytes-per-topic|-bp long] "
    "[--max-timeout-ms|-mt long] [--abort-on-disconnect]"
)
_MAX_NUM: Final = "-m|--maxNum int"
_GET_SET: Final = ("get", "set")

AUTO_SCALE_FIELDS: Final = "--set Map"

# The same for namespaces and topics.
_STORAGE: Final = (
    At("compaction-threshold", "compactionThreshold", "--threshold|-t Bytes", value("threshold")),
    At("compaction-delete-retention", "compactionDeleteRetention", "--time|-t Seconds", value("time")),
    At("delayed-delivery", "delayedDelivery", _DELAYED, _delayed),
    At("persistence", "persistence", _PERSISTENCE, _PERSISTENCE_BODY),
    At("deduplication", "deduplication", _SWITCH, switched),
    At("transaction-buffer", "transactionBuffer", "-o|--order String", value("order")),
)  # fmt: skip
_RATES: Final = (
    At("publish-rate", "publishRate", _PUBLISH, _PUBLISH_BODY),
    At("dispatch-rate", "dispatchRate", _DISPATCH, _DISPATCH_BODY),
    At("subscription-dispatch-rate", "subscriptionDispatchRate", _DISPATCH, _DISPATCH_BODY),
)

OF_NAMESPACES: Final = (
    At("scalable-topic-auto-scale-policy", "scalableTopicAutoScalePolicy", AUTO_SCALE_FIELDS, auto_scale),
    At("retention", "retention", "--time|-t Seconds --size|-s Bytes", _retention),
    At("message-ttl", "messageTTL", "--messageTTL|-ttl Seconds", value("messageTTL")),
    At("backlog-quota", "backlogQuota", _QUOTA, _quota, verbs=("set", "remove"), query=_QUOTA_QUERY),
    At("backlog-quotas", "backlogQuota", verbs=("get",), get_path="backlogQuotaMap"),
    *_STORAGE,
    At("deduplication-snapshot-interval", "deduplicationSnapshotInterval", "--interval|-i int", value("interval")),
    *_RATES,
    At("replicator-dispatch-rate", "replicatorDispatchRate", _REPLICATOR, _REPLICATOR_BODY),
    At("subscribe-rate", "subscribeRate", _SUBSCRIBE, _SUBSCRIBE_BODY),
    At("max-producers-per-topic", "maxProducersPerTopic", "--max-producers-per-topic|-p int", value("max_producers_per_topic")),
    At("max-consumers-per-topic", "maxConsumersPerTopic", "--max-consumers-per-topic|-c int", value("max_consumers_per_topic")),
    At("max-consumers-per-subscription", "maxConsumersPerSubscription", "--max-consumers-per-subscription|-c int", value("max_consumers_per_subscription")),
    At("max-subscriptions-per-topic", "maxSubscriptionsPerTopic", "--max-subscriptions-per-topic|-m int", value("max_subscriptions_per_topic")),
    At("max-unacked-messages-per-consumer", "maxUnackedMessagesPerConsumer", "--max-unacked-messages-per-topic|-c int", value("max_unacked_messages_per_topic")),
    At("max-unacked-messages-per-subscription", "maxUnackedMessagesPerSubscription", "--max-unacked-messages-per-subscription|-c int", value("max_unacked_messages_per_subscription")),
    At("max-topics-per-namespace", "maxTopicsPerNamespace", "--max-topics-per-namespace|-t int", value("max_topics_per_namespace")),
    At("transaction-limits", "transactionLimits", _TRANSACTIONS, _transactions),
    At("auto-topic-creation", "autoTopicCreation", _SWITCH + " [--type|-t String] [--num-partitions|-n Integer]", _topic_creation),
    At("auto-subscription-creation", "autoSubscriptionCreation", "[--enable|-e]", fields(allowAutoSubscriptionCreation="enable")),
    At("inactive-topic-policies", "inactiveTopicPolicies", _INACTIVE, _inactive),
    At("subscription-expiration-time", "subscriptionExpirationTime", "-t|--time int", value("time")),
    At("subscription-types-enabled", "subscriptionTypesEnabled", "--types|-t List", value("types")),
    At("encryption-required", "encryptionRequired", _SWITCH, switched),
    At("schema-compatibility-strategy", "schemaCompatibilityStrategy", "[--compatibility|-c String]", value("compatibility")),
    At("schema-validation-enforce", "schemaValidationEnforced", _SWITCH, switched, verbs=("set",)),
    At("schema-autoupdate-strategy", "schemaAutoUpdateCompatibilityStrategy", "[--compatibility|-c String] [--disabled|-d]", lambda o: "AutoUpdateDisabled" if o.disabled else o.compatibility),
    At("is-allow-auto-update-schema", "isAllowAutoUpdateSchema", _SWITCH, switched),
    At("subscription-auth-mode", "subscriptionAuthMode", "-m|--subscription-auth-mode String", value("subscription_auth_mode")),
    At("transaction-coordinators", "transactionCoordinators", "-c|--coordinators List", lambda o: [int(each) for each in o.coordinators]),
    At("entry-filters", "entryFilters", "--entry-filters-name|-efn String", fields(entryFilterNames="entry_filters_name")),
    At("dispatcher-pause-on-ack-state-persistent", "dispatcherPauseOnAckStatePersistent"),
    At("offload-policies", "offloadPolicies", _OFFLOAD, _offload),
    At("offload-threshold", "offloadThreshold", "--size|-s Bytes [--time|-t Seconds]", value("size")),
    At("offload-deletion-lag", "offloadDeletionLagMs", "--lag|-l Seconds", lambda o: o.lag * 1000, verbs=_GET_SET),
    At("anti-affinity-group", "antiAffinity", "--group|-g String", value("group"), verbs=_GET_SET),
    At("bookie-affinity-group", "persistence/bookieAffinity", "--primary-group|-pg String [--secondary-group|-sg String]",
       fields(bookkeeperAffinityGroupPrimary="primary_group", bookkeeperAffinityGroupSecondary="secondary_group"), verbs=_GET_SET),
    At("clusters", "replication", "--clusters|-c List", value("clusters")),
    At("allowed-clusters", "allowedClusters", "--clusters|-c List", value("clusters")),
    At("properties", "properties", "--properties|-p Map", lambda o: dict(o.properties), verbs=_GET_SET),
)  # fmt: skip

OF_TOPICS: Final = (
    At("retention", "retention", "--time|-t Seconds --size|-s Bytes", _retention),
    At("message-ttl", "messageTTL", "-t|--ttl Seconds", by_query="ttl"),
    At("backlog-quota", "backlogQuota", _QUOTA, _quota, get_path="backlogQuotaMap", query=_QUOTA_QUERY),
    *_STORAGE,
    At("deduplication-snapshot-interval", "deduplicationSnapshotInterval", "-i|--interval int", value("interval")),
    *_RATES,
    At("replicator-dispatch-rate", "replicatorDispatchRate", _DISPATCH, _DISPATCH_BODY),
    At("subscribe-rate", "subscribeRate", _SUBSCRIBE, _SUBSCRIBE_BODY),
    At("max-producers", "maxProducersPerTopic", "--max-producers|-p int", value("max_producers"), also=("maxProducers",)),
    At("max-consumers", "maxConsumersPerTopic", "--max-consumers|-c int", value("max_consumers")),
    At("max-consumers-per-subscription", "maxConsumersPerSubscription", "--max-consumers-per-subscription|-c int", value("max_consumers_per_subscription")),
    At("max-subscriptions-per-topic", "maxSubscriptionsPerTopic", "--max-subscriptions-per-topic|-s|-m int", value("max_subscriptions_per_topic"), also=("max-subscriptions",)),
    At("max-unacked-messages-per-consumer", "maxUnackedMessagesPerConsumer", _MAX_NUM, value("maxNum"), also=("max-unacked-messages-on-consumer",)),
    At("max-unacked-messages-per-subscription", "maxUnackedMessagesPerSubscription", _MAX_NUM, value("maxNum"), also=("max-unacked-messages-on-subscription",)),
    At("max-message-size", "maxMessageSize", "--max-message-size|-m int", value("max_message_size")),
    At("auto-subscription-creation", "autoSubscriptionCreation", "[--enable|-e]", fields(allowAutoSubscriptionCreation="enable")),
    At("inactive-topic-policies", "inactiveTopicPolicies", _INACTIVE, _inactive),
    At("subscription-types-enabled", "subscriptionTypesEnabled", "--types|-t List", value("types")),
    At("schema-compatibility-strategy", "schemaCompatibilityStrategy", "--strategy|-s String", value("strategy")),
    At("entry-filters-per-topic", "entryFilters", "--entry-filters-name|-efn String", fields(entryFilterNames="entry_filters_name")),
    At("dispatcher-pause-on-ack-state-persistent", "dispatcherPauseOnAckStatePersistent"),
    At("offload-policies", "offloadPolicies", _OFFLOAD, _offload),
    At("replication-clusters", "replication", "--clusters|-c List", value("clusters")),
)  # fmt: skip


def of_namespace() -> Iterator[Command]:
    for at in OF_NAMESPACES:
        level = BY_NAME[at.policy].namespace
        yield from _commands(
            at, level, (at.name,), "<namespaceName>", "namespaces/{namespace}", "", {}
        )


def of_topic(group: str) -> Iterator[Command]:
    """Rows of `topics`, where some policies have older names too, and of `topicPolicies`."""
    options = " [-ap|--applied]" + (" [--global|-g]" if group == "topicPolicies" else "")
    query = {"isGlobal": "global"} if group == "topicPolicies" else {}
    for at in OF_TOPICS:
        names = (at.name, *at.also) if group == "topics" else (at.name,)
        level = BY_NAME[at.policy].topic
        yield from _commands(at, level, names, "<topicName>", "{topic}", options, query)


def _commands(
    at: At,
    level: Level | None,
    names: tuple[str, ...],
    place: str,
    base: str,
    options: str,
    query: dict[str, str],
) -> Iterator[Command]:
    assert level is not None, f"{at.policy} has no such level"
    path = f"{base}/{level.path}"
    for name in names:
        if "get" in at.verbs:
            shown = f"{base}/{at.get_path or level.path}"
            applied = {"applied": "applied"} if options else {}
            yield Command(
                f"get-{name}", f"{place}{options}", f"GET {shown}", query={**applied, **query}
            )
        unread = options.replace(" [-ap|--applied]", "")
        if "set" in at.verbs:
            yield Command(
                f"set-{name}",
                f"{place} {at.options}{unread}",
                f"{level.verb} {path}",
                at.body,
                {**at.query, **query, **({level.path: at.by_query} if level.by_query else {})},
            )
        if "remove" in at.verbs and level.removable:
            kind = " [-t|--type String]" if at.query else ""
            yield Command(
                f"remove-{name}",
                f"{place}{kind}{unread}",
                f"DELETE {path}",
                query={**at.query, **query},
            )
