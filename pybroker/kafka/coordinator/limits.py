"""Bounds of the group coordinator. Kafka's names are in the comments."""

from dataclasses import dataclass, field

from pybroker.base.configuration.config import BrokerConfig
from pybroker.kafka.groups.consumer_group import ConsumerLimits
from pybroker.kafka.groups.values import GroupLimits


@dataclass(frozen=True, slots=True)
class CoordinatorLimits:
    group: GroupLimits = field(default_factory=GroupLimits)
    consumers: ConsumerLimits = field(default_factory=ConsumerLimits)
    max_metadata_bytes: int = 4096  # offset.metadata.max.bytes: of one committed offset
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # offsets.retention.minutes
    expiry_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    max_group_id_chars: int = 1024
    # Of the groups and offsets in one of the 16 logs: of a user some 100,000 offsets; of all.
    user_log_bytes: int = 32 * 1024 * 1024
    max_log_bytes: int = 64 * 1024 * 1024
    # What members say and are assigned: of a group, of a user, of all that the broker coordinates.
    group_memory_bytes: int = 16 * 1024 * 1024
    user_memory_bytes: int = 32 * 1024 * 1024
    members_memory_bytes: int = 64 * 1024 * 1024

    @classmethod
    def of(cls, config: BrokerConfig) -> "CoordinatorLimits":
        group = GroupLimits(
            initial_rebalance_delay_ms=config.kafka_group_initial_rebalance_delay_ms,
            max_members=config.kafka_group_max_size,
        )
        consumers = ConsumerLimits(max_members=config.kafka_group_max_size)
        return cls(
            group, consumers, offsets_retention_ms=config.kafka_offsets_retention_minutes * 60_000
        )
