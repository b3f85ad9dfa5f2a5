"""The configs of a topic: names, types, defaults, and which of them have an effect here.

What a client has set is kept among the topic's properties, under `kafka.` and its name, in the same
record as the number of partitions. Those with an effect also set policies of the topic (see
`topic_policies.py`); the others are accepted and shown, because clients and tools set them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.kafka.configs.kinds import (
    TRUTH,
    Check,
    Kind,
    anything,
    bad_config,
    check_size,
    fraction,
    items,
    one_of,
    some_of,
    whole,
)
from pybroker.kafka.errors import ErrorCode, KafkaError

_INT: Final = 2**31 - 1
_LONG: Final = str(2**63 - 1)
WEEK_MS: Final = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class TopicConfig:
    name: str
    kind: Kind
    default: str
    check: Check
    wanted: str  # completes "Invalid value …: "
    effect: str = ""  # what it does here; empty: it is accepted and shown


def number(
    name: str, default: int | str, least: int = 0, most: int = 2**63 - 1, effect: str = ""
) -> TopicConfig:
    kind = Kind.INT if most == _INT else Kind.LONG
    wanted = f"a whole number from {least} to {most}"
    return TopicConfig(name, kind, str(default), whole(least, most), wanted, effect)


def _truth(name: str, default: str) -> TopicConfig:
    return TopicConfig(name, Kind.BOOLEAN, default, TRUTH, "true or false")


def choice(name: str, default: str, *choices: str, effect: str = "") -> TopicConfig:
    wanted = "one of " + ", ".join(choices)
    return TopicConfig(name, Kind.STRING, default, one_of(*choices), wanted, effect)


CLEANUP_POLICY: Final = "cleanup.policy"
RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
DELETE_RETENTION_MS: Final = "delete.retention.ms"
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
TIMESTAMP_TYPE: Final = "message.timestamp.type"
COMPRESSION_TYPE: Final = "compression.type"

TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {
    row.name: row
    for row in (
        TopicConfig(
            CLEANUP_POLICY,
            Kind.LIST,
            "delete",
            some_of("delete", "compact"),
            "delete, compact, or both",
            "compact sets compactionThreshold; without delete, retention has no limit",
        ),
        number(RETENTION_MS, WEEK_MS, -1, effect="retention: retentionTimeInMinutes, rounded up"),
        number(RETENTION_BYTES, -1, -1, effect="retention: retentionSizeInMB, rounded up"),
        number(DELETE_RETENTION_MS, 86_400_000, effect="compactionDeleteRetention"),
        number(MAX_MESSAGE_BYTES, 1_048_588, 0, _INT, effect="maxMessageSize"),
        choice(
            TIMESTAMP_TYPE,
            "CreateTime",
            "CreateTime",
            "LogAppendTime",
            effect="LogAppendTime: records of Kafka's clients get the broker's time",
        ),
        choice(
            COMPRESSION_TYPE,
            "producer",
            "uncompressed",
            "zstd",
            "lz4",
            "snappy",
            "gzip",
            "producer",
        ),
        number("compression.gzip.level", -1, -1, 9),
        number("compression.lz4.level", 9, 1, 17),
        number("compression.zstd.level", 3, -131_072, 22),
        number("min.insync.replicas", 1, 1, _INT),
        number("segment.bytes", 1_073_741_824, 1, _INT),
        number("segment.ms", WEEK_MS, 1),
        number("segment.jitter.ms", 0),
        number("segment.index.bytes", 10_485_760, 4, _INT),
        number("index.interval.bytes", 4096, 0, _INT),
        number("flush.messages", _LONG, 1),
        number("flush.ms", _LONG),
        number("file.delete.delay.ms", 60_000),
        number("max.compaction.lag.ms", _LONG, 1),
        number("min.compaction.lag.ms", 0),
        TopicConfig(
            "min.cleanable.dirty.ratio", Kind.DOUBLE, "0.5", fraction, "a number from 0 to 1"
        ),
        number("message.timestamp.before.max.ms", _LONG),
        number("message.timestamp.after.max.ms", 3_600_000),
        number("local.retention.ms", -2, -2),
        number("local.retention.bytes", -2, -2),
        _truth("preallocate", "false"),
        _truth("unclean.leader.election.enable", "false"),
        _truth("remote.storage.enable", "false"),
        _truth("remote.log.copy.disable", "false"),
        _truth("remote.log.delete.on.disable", "false"),
        TopicConfig("leader.replication.throttled.replicas", Kind.LIST, "", anything, ""),
        TopicConfig("follower.replication.throttled.replicas", Kind.LIST, "", anything, ""),
        # Older names, which clients of Kafka 3 may still set.
        _truth("message.downconversion.enable", "true"),
        choice("message.format.version", "3.0-IV1", "3.0-IV1", "2.8-IV0", "2.8"),
        number("message.timestamp.difference.max.ms", _LONG),
    )
}


def checked_config(name: str, value: str) -> TopicConfig:
    """Raises KafkaError, INVALID_CONFIG."""
    row = TOPIC_CONFIGS.get(name)
    if row is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name[:200]}")
    check_size(name, value)
    if not row.check(value) or (row.name == CLEANUP_POLICY and not items(value)):
        raise bad_config(name, value, row.wanted)
    return row


def checked_configs(asked: Mapping[str, str | None]) -> dict[str, str]:
    """Those with a value; None stands for the default. Raises KafkaError, INVALID_CONFIG."""
    for name, value in asked.items():
        checked_config(name, _default(name) if value is None else value)
    return {name: value for name, value in asked.items() if value is not None}


def _default(name: str) -> str:
    return TOPIC_CONFIGS[name].default if name in TOPIC_CONFIGS else ""
