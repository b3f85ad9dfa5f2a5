"""When scalable topics are split and merged by themselves. Source: Apache Pulsar 5.0, PIP-483."""

from collections.abc import Mapping
from typing import Any, Final

from pybroker.broker.policies.kinds import (
    LONG,
    BadPolicy,
    Check,
    RefusedPolicy,
    number,
    record,
    truth,
    whole,
)
from pybroker.broker.policies.policy import Key, Level, Policy, Record

_COUNTS: Final = "maxSegments minSegments"
_TIMES: Final = (
    "splitCooldownSeconds rebucketCooldownSeconds mergeCooldownSeconds mergeWindowSeconds"
)
_MESSAGES: Final = "MsgRateIn MsgRateOut"  # per second
_BYTES: Final = "BytesRateIn BytesRateOut"
_CONSUMERS: Final = "splitVsRebucketMinMsgRateInThreshold"


def contradiction(policy: Mapping[str, Any]) -> str | None:
    """Why splits would undo merges, or the limits exclude each other; fields may be missing."""
    least, most = policy.get("minSegments", 1), policy.get("maxSegments")
    if most is not None and least > most:
        return f"minSegments is {least}, and maxSegments {most}"
    for each in f"{_MESSAGES} {_BYTES}".split():
        merge, split = (policy.get(f"{what}{each}Threshold") for what in ("merge", "split"))
        if merge is not None and split is not None and merge >= split:
            return f"merge{each}Threshold is {merge:g}, and split{each}Threshold {split:g}"
    return None


def _sound(policy: Record) -> Record:
    if (why := contradiction(policy)) is not None:
        raise RefusedPolicy(f"Invalid auto-scale policy: {why}")
    return policy


def _rate(value: object) -> float:
    found: float = number(value)
    if found < 0:
        raise BadPolicy(f"{found:g} must be at least 0")
    return found


def _thresholds(names: str) -> list[str]:
    return [f"{what}{each}Threshold" for what in ("split", "merge") for each in names.split()]


_RATE: Final = Check(_rate, number.takes, number.gives)
_KINDS: Final = (
    (truth, ["enabled"]),
    (whole(1), _COUNTS.split()),
    (whole(), ["maxDagDepth"]),
    (whole(0, LONG), [*_TIMES.split(), *_thresholds(_BYTES)]),
    (_RATE, [_CONSUMERS, *_thresholds(_MESSAGES)]),
)


def _key(name: str) -> Key:
    prefix = "scalable_topic_auto_scale_" if name == "enabled" else "scalable_topic_"
    return Key(prefix + "".join(f"_{c.lower()}" if c.isupper() else c for c in name))


_FIELDS: Final = {name: check for check, names in _KINDS for name in names}
AUTO_SCALE: Final = Policy[Record](
    "scalableTopicAutoScalePolicy",
    record(together=_sound, **{name: (check, None) for name, check in _FIELDS.items()}),
    {name: _key(name) for name in _FIELDS},
    Level("scalableTopicAutoScalePolicy", "scalableTopicAutoScalePolicy"),
    merged=True,
)
