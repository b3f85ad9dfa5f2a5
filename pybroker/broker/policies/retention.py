"""Retention of messages that all subscriptions have acknowledged, by time and size."""

from dataclasses import replace

from managed_ledger.trim import Retention
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.table import RETENTION
from pybroker.broker.served import ServedTopic
from pybroker.broker.topic import Topic


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
        if topic.ledger.config.retention != wanted:
            topic.ledger.config = replace(topic.ledger.config, retention=wanted)
            topic.ledger.touch()  # more may be trimmed than before
        topic.keeps_what_policies_say()
