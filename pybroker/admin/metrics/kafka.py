"""Metrics of the groups of Kafka's clients that this broker coordinates."""

from collections import Counter
from typing import Final

from pybroker.admin.metrics.rows import rows
from pybroker.admin.services import KafkaGroups
from pybroker.base.metrics import Exposition
from pybroker.base.runtime import Pace

ROWS: Final = (
    *rows(
        "gauge",
        "kind",
        """
pybroker_kafka_groups | groups | Groups of Kafka's clients.
""",
    ),
    *rows(
        "gauge",
        "",
        """
pybroker_kafka_group_members_bytes | groups | Memory of what members of groups say and are assigned, in bytes.
""",
    ),
    *rows(
        "gauge",
        "group",
        """
pybroker_kafka_group_members | groups | Members of a group.
""",
    ),
    *rows(
        "gauge",
        "group topic",
        """
pybroker_kafka_group_lag | offsets | Messages of a partition behind the offset that a group has committed; of partitions that this broker has loaded.
""",
    ),
)


async def add_groups(
    exposition: Exposition, groups: KafkaGroups, pace: Pace, with_topics: bool
) -> None:
    kinds: Counter[str] = Counter(classic=0, consumer=0)
    async for measured in groups.measured():
        kinds[measured["kind"]] += 1
        if with_topics:
            labels = exposition.labels(group=measured["group"])
            exposition.add("pybroker_kafka_group_members", measured["members"], labels)
            for topic, lag in measured["lag"].items():
                labels = exposition.labels(group=measured["group"], topic=topic)
                exposition.add("pybroker_kafka_group_lag", lag, labels)
        await pace.step(1 + len(measured["lag"]))
    for kind, count in kinds.items():
        exposition.add("pybroker_kafka_groups", count, exposition.labels(kind=kind))
    exposition.add("pybroker_kafka_group_members_bytes", groups.members_bytes)
