"""Kafka's configs of a topic ↔ the policies that apply them.

A topic that is created through Kafka keeps its messages as Kafka does: for seven days, whoever has
read them, and it is not deleted while nobody uses it. So it gets policies of its own. Other topics
have those of their namespace.
"""

from collections.abc import Mapping
from typing import Any, Final

from pybroker.broker.policies.deleted_keys import COMPACTION_DELETE_RETENTION
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.policy import Policy, Record
from pybroker.broker.policies.shapes import NO_SUBSCRIPTIONS
from pybroker.broker.policies.table import (
    COMPACTION_THRESHOLD,
    INACTIVE_TOPICS,
    MAX_MESSAGE_SIZE,
    RETENTION,
)
from pybroker.kafka.configs.kinds import items
from pybroker.kafka.configs.topic_table import (
    CLEANUP_POLICY,
    DELETE_RETENTION_MS,
    MAX_MESSAGE_BYTES,
    RETENTION_BYTES,
    RETENTION_MS,
    TOPIC_CONFIGS,
)

COMPACTED_AFTER_BYTES: Final = 16 * 1024**2  # of new messages, if a topic is compacted
_MINUTE_MS: Final = 60_000
_MB: Final = 1024**2
_KEPT: Final[Record] = {
    "inactiveTopicDeleteMode": NO_SUBSCRIPTIONS,
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": False,
}
Values = list[tuple[Policy[Any], Any]]


def policies_of(configs: Mapping[str, str]) -> Values:
    """What a topic with these configs has as policies; None: its namespace's."""
    compacted = "compact" in items(_value(configs, CLEANUP_POLICY))
    delete_ms, most = configs.get(DELETE_RETENTION_MS), configs.get(MAX_MESSAGE_BYTES)
    return [
        (INACTIVE_TOPICS, _KEPT),
        (RETENTION, _retention(configs)),
        (COMPACTION_THRESHOLD, COMPACTED_AFTER_BYTES if compacted else None),
        (COMPACTION_DELETE_RETENTION, None if delete_ms is None else _up(int(delete_ms), 1000)),
        (MAX_MESSAGE_SIZE, None if most is None else int(most)),
    ]


def _value(configs: Mapping[str, str], name: str) -> str:
    return configs.get(name, TOPIC_CONFIGS[name].default)


def _retention(configs: Mapping[str, str]) -> Record:
    if "delete" not in items(_value(configs, CLEANUP_POLICY)):
        return {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    time_ms, size_bytes = (int(_value(configs, name)) for name in (RETENTION_MS, RETENTION_BYTES))
    if time_ms == 0 or size_bytes == 0:
        return {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    return {
        "retentionTimeInMinutes": min(_up(time_ms, _MINUTE_MS), 2**31 - 1),
        "retentionSizeInMB": _up(size_bytes, _MB),
    }


def _up(number: int, unit: int) -> int:
    """In units, rounded up; -1 stays, which means no limit."""
    return -1 if number < 0 else -(-number // unit)


def configs_of(policies: Effective, kept: Mapping[str, str]) -> dict[str, str]:
    """The configs that are in force. Where a policy was changed since a client of Kafka's set the
    config in `kept`, its value is what the policy says.
    """
    found = dict(kept)
    said = dict(policies_of(kept))
    if policies[RETENTION] != said[RETENTION]:
        found |= _shown_retention(policies[RETENTION])
    if (now := policies[COMPACTION_DELETE_RETENTION]) != said[COMPACTION_DELETE_RETENTION]:
        found[DELETE_RETENTION_MS] = str(1000 * now if now >= 0 else TOPIC_CONFIGS_MOST)
    if (most := policies[MAX_MESSAGE_SIZE]) != (said[MAX_MESSAGE_SIZE] or 0):
        found[MAX_MESSAGE_BYTES] = str(most)
    is_compacted = policies[COMPACTION_THRESHOLD] > 0
    if is_compacted != ("compact" in items(_value(kept, CLEANUP_POLICY))):
        found[CLEANUP_POLICY] = "compact,delete" if is_compacted else "delete"
    return found


TOPIC_CONFIGS_MOST: Final = 2**63 - 1  # a tombstone is kept for ever


def _shown_retention(retention: Record) -> dict[str, str]:
    minutes, size_mb = retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]
    return {
        RETENTION_MS: str(minutes * _MINUTE_MS if minutes >= 0 else -1),
        RETENTION_BYTES: str(size_mb * _MB if size_mb >= 0 else -1),
    }
