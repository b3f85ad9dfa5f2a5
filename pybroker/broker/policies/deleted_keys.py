"""How long compaction keeps messages that delete a key, in seconds; -1 for ever, 0 not at all."""

from typing import Final

from pybroker.broker.policies.kinds import whole
from pybroker.broker.policies.policy import Level, Policy

COMPACTION_DELETE_RETENTION: Final = Policy[int](
    "compactionDeleteRetention",
    whole(-1),
    "topic_compaction_delete_retention_seconds",
    Level("compactionDeleteRetention", "compaction_delete_retention"),
    Level("compactionDeleteRetention", "compactionDeleteRetention"),
)
