"""What a seed does beyond the ordinary: a module per subject, a class per feature.

Each seed enables some features at random, so that they meet ("swarm testing").
"""

import random
from typing import Final

from features import (
    backups,
    beginning,
    committing,
    compacting,
    copying,
    damaging_disks,
    delays,
    ends_at_once,
    environment,
    fencing,
    groups,
    hostility,
    isolating,
    kafka_and_pulsar,
    kafka_groups,
    kafka_messages,
    kafka_newer_groups,
    kafka_shares,
    kafka_transactions,
    key_ranges,
    lives,
    long_ends,
    mixing,
    names,
    navigation,
    ordering,
    passing_topics,
    perishing,
    preparing,
    rebirth,
    returning,
    sharing,
    shortages,
    slow_reads,
    splitting,
    storage,
    succession,
    switching,
    terminating,
    truncating,
)
from features.feature import Feature

ALL: Final[dict[str, type[Feature]]] = {
    feature.name: feature
    for module in (
        backups,
        beginning,
        committing,
        compacting,
        copying,
        damaging_disks,
        delays,
        ends_at_once,
        environment,
        fencing,
        groups,
        hostility,
        isolating,
        kafka_and_pulsar,
        kafka_groups,
        kafka_messages,
        kafka_newer_groups,
        kafka_shares,
        kafka_transactions,
        key_ranges,
        lives,
        long_ends,
        mixing,
        names,
        navigation,
        ordering,
        passing_topics,
        perishing,
        preparing,
        rebirth,
        returning,
        sharing,
        shortages,
        slow_reads,
        splitting,
        storage,
        succession,
        switching,
        terminating,
        truncating,
    )
    for feature in module.FEATURES
}


# Drawn from a separate stream, so that older draws of a seed stay the same.
_BESIDE: Final = {
    kafka_newer_groups.KafkaHeartbeats.name: 0.08,
    kafka_newer_groups.KafkaStaticMembers.name: 0.08,
    damaging_disks.DamagedDisks.name: 0.05,
}


def draw(rng: random.Random, beside: random.Random) -> tuple[str, ...]:
    names = [name for name in ALL if name not in _BESIDE]
    count = min(len(names), rng.choice((0, 1, 1, 2, 2, 3, 4, 5)))
    drawn = sorted(rng.sample(names, count))
    alone = [name for name in drawn if not ALL[name].meets_others]
    more = [name for name, share in _BESIDE.items() if beside.random() < share]
    return tuple(alone[:1] or [*drawn, *more])
