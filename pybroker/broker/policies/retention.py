"""Retention of messages that all subscriptions have acknowledged, by time and size.

Kafka's consumers have no subscriptions. If nobody says how long the messages of a topic that they
use are kept, it is as long as in Kafka.
"""

from dataclasses import replace
from typing import Final

from managed_ledger.trim import Retention
from pybroker.broker.client_topics import ServedTopic, used_by_kafka
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.table import RETENTION

KAFKA: Final = Retention(7 * 24 * 3600 * 1000, -1)


def retention_of(policies: Effective) -> Retention:
    policy = policies[RETENTION]
    minutes, megabytes = policy["retentionTimeInMinutes"], policy["retentionSizeInMB"]
    return Retention(
        time_ms=minutes * 60_000 if minutes >= 0 else -1,
        size_bytes=megabytes * 1024**2 if megabytes >= 0 else -1,
    )


class KeptMessages:
    def follow(self, topic: ServedTopic) -> None:
        if not isinstance(topic, Topic):
            return
        wanted = topic.policies.made(retention_of)
        if wanted == Retention() and used_by_kafka(topic) and not topic.policies.was_set(RETENTION):
            wanted = KAFKA
        if topic.ledger.config.retention != wanted:
            topic.ledger.config = replace(topic.ledger.config, retention=wanted)
            topic.ledger.touch()  # more may be trimmed than before
        topic.keeps_what_policies_say()
