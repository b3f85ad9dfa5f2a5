"""Structured policy values: their fields, and constraints between them."""

from typing import Final

from pybroker.broker.policies.kinds import (
    LONG,
    BadPolicy,
    RefusedPolicy,
    choice,
    record,
    truth,
    whole,
)
from pybroker.broker.policies.policy import Key, Record

SIZE, AGE = "destination_storage", "message_age"  # kinds of backlog quotas
HOLD, EXCEPTION, EVICTION = (
    "producer_request_hold",
    "producer_exception",
    "consumer_backlog_eviction",
)
NO_SUBSCRIPTIONS, CAUGHT_UP = (
    "delete_when_no_subscriptions",
    "delete_when_subscriptions_caught_up",
)
AUTO_UPDATE: Final = (
    "AutoUpdateDisabled",
    "Backward",
    "Forward",
    "Full",
    "AlwaysCompatible",
    "BackwardTransitive",
    "ForwardTransitive",
    "FullTransitive",
)
_MOST_PARTITIONS: Final = 100_000
SUBSCRIPTION_TYPES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")


class TooManyPartitions(BadPolicy):
    http_status = 406


# -- shapes of values


def no_contradiction(retention: Record) -> Record:
    """If one measure retains nothing, the other must not retain anything."""
    time, size = retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]
    if (time == 0) != (size == 0):
        raise RefusedPolicy(
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when "
            "one of the limits has a non-zero value. Use the value of -1 instead of 0 to ignore a "
            "specific limit. To disable retention both limits must be set to 0."
        )
    return retention


def _quota(quota: Record) -> Record:
    size = quota.get("limitSize", quota.get("limit", -1))
    if "policy" not in quota:
        raise RefusedPolicy(f"policy must be one of: {HOLD}, {EXCEPTION}, {EVICTION}")
    return {"limit": size, "limitSize": size, "limitTime": quota["limitTime"]} | {
        "policy": quota["policy"]
    }


QUOTA: Final = record(
    together=_quota,
    limit=(whole(-LONG - 1, LONG), None),
    limitSize=(whole(-LONG - 1, LONG), None),
    limitTime=(whole(-1), -1),
    policy=(choice(HOLD, EXCEPTION, EVICTION), None),
)


def topic_creation(override: Record) -> Record:
    """The type and the number of partitions matter only if creation is allowed."""
    if "allowAutoTopicCreation" not in override:
        raise BadPolicy("allowAutoTopicCreation must be true or false")
    if not override["allowAutoTopicCreation"]:
        return override
    kind, count = override.get("topicType"), override.get("defaultNumPartitions")
    if kind not in ("partitioned", "non-partitioned"):
        raise _not_creatable(
            f"Unknown topic type [{kind or 'null'}]", "topicType is partitioned or non-partitioned"
        )
    if kind == "partitioned" and count is None:
        raise _not_creatable("[defaultNumPartitions] cannot be null when the type is partitioned.")
    if kind == "partitioned" and count is not None and count < 1:
        raise _not_creatable("[defaultNumPartitions] cannot be less than 1 for partition type.")
    if count is not None and count > _MOST_PARTITIONS:
        raise TooManyPartitions(f"There may be at most {_MOST_PARTITIONS} partitions")
    if kind == "non-partitioned" and count is not None:
        raise _not_creatable(
            "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
        )
    return override


def _not_creatable(detail: str, advice: str = "") -> RefusedPolicy:
    what = "Invalid configuration for autoTopicCreationOverride. the detail is "
    return RefusedPolicy(what + detail, advice)


def bookies(policies: Record) -> Record:
    ensemble, write, ack = (
        policies[f"bookkeeper{what}"] for what in ("Ensemble", "WriteQuorum", "AckQuorum")
    )
    if not ensemble >= write >= ack:
        raise BadPolicy(
            f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) >= AckQuorum ({ack}) "
            "must hold"
        )
    return policies


DISPATCH_RATE_SHAPE: Final = record(
    dispatchThrottlingRateInMsg=(whole(-(2**31)), -1),
    dispatchThrottlingRateInByte=(whole(-LONG - 1, LONG), -1),
    relativeToPublishRate=(truth, False),
    ratePeriodInSecond=(whole(1), 1),
)


def dispatch_rate(messages: str, size: str) -> Record:
    """The defaults, by two keys of broker.conf."""
    return {
        "dispatchThrottlingRateInMsg": Key(messages),
        "dispatchThrottlingRateInByte": Key(size),
        "relativeToPublishRate": Key("dispatch_throttling_rate_relative_to_publish_rate"),
        "ratePeriodInSecond": 1,
    }
