"""What is configured of a share group, with Kafka's names and defaults.

Differs from Kafka: messages of open and aborted transactions are hidden unless a group asks for
them (share.isolation.level).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

AUTO_OFFSET_RESET: Final = "share.auto.offset.reset"
DELIVERY_COUNT_LIMIT: Final = "share.delivery.count.limit"
ISOLATION_LEVEL: Final = "share.isolation.level"
RECORD_LOCK_DURATION_MS: Final = "share.record.lock.duration.ms"
MAX_RECORD_LOCKS: Final = "share.partition.max.record.locks"


@dataclass(frozen=True, slots=True)
class ShareConfigs:
    begins_at_earliest: bool = False  # otherwise at the end, where no position is stored
    isolation_level: str = "read_committed"
    record_lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    max_record_locks: int = 2_000  # of one member on one partition

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> "ShareConfigs":
        """The values have been checked."""
        return cls(
            configs.get(AUTO_OFFSET_RESET, "latest") == "earliest",
            configs.get(ISOLATION_LEVEL, "read_committed"),
            int(configs.get(RECORD_LOCK_DURATION_MS, 30_000)),
            int(configs.get(DELIVERY_COUNT_LIMIT, 5)),
            int(configs.get(MAX_RECORD_LOCKS, 2_000)),
        )
