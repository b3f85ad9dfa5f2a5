"""Metrics of scalable topics. They are there once a topic is used: before, nothing is loaded."""

from typing import Final

from pybroker.admin.metrics.rows import rows
from pybroker.admin.services import AdminServices
from pybroker.base.metrics import Exposition

_P: Final = "pulsar_scalable_topic_"
ROWS: Final = (
    *rows(
        "gauge",
        "",
        """
pulsar_scalable_topic_controller_count | controllers | Scalable topics that this broker controls.
pulsar_scalable_topic_segment_blocked_count | controllers | Segments that groups of stream consumers get once their ancestors are drained.
""",
    ),
    *rows(
        "gauge",
        "segment_state",
        """
pulsar_scalable_topic_segment_count | records | Segments of the topics that this broker controls.
""",
    ),
    *rows(
        "gauge",
        "consumer_state",
        """
pulsar_scalable_topic_consumer_count | controllers | Members of groups: connected, or in their grace period.
""",
    ),
    *rows(
        "gauge",
        "watch_type",
        """
pulsar_scalable_topic_watch_session_count | watches | Clients' watches of layouts and of namespaces.
""",
    ),
    *rows(
        "counter",
        "operation operation_trigger operation_status",
        """
pulsar_scalable_topic_layout_operation_total | records | Splits, merges and prunings since the start.
""",
    ),
    *rows(
        "counter",
        "rebalance_reason",
        """
pulsar_scalable_topic_rebalance_total | controllers | Divisions of segments among a group's members since the start.
""",
    ),
    *rows(
        "counter",
        "operation_status",
        """
pulsar_scalable_topic_watch_update_total | watches | Layouts told to watches since the start, without the first.
""",
    ),
)


def add_scalable(exposition: Exposition, services: AdminServices) -> None:
    if not services.topics.has_scalable:
        return
    scalable = services.topics.scalable
    measures = scalable.measures
    exposition.add(f"{_P}controller_count", len(scalable.owned()))
    exposition.add(f"{_P}segment_blocked_count", measures.blocked())
    for state, count in scalable.segment_states().items():
        exposition.add(f"{_P}segment_count", count, exposition.labels(segment_state=state))
    for state, count in measures.consumers().items():
        exposition.add(f"{_P}consumer_count", count, exposition.labels(consumer_state=state))
    for kind, count in measures.watches().items():
        exposition.add(f"{_P}watch_session_count", count, exposition.labels(watch_type=kind))
    for (operation, trigger, status), count in measures.operations.items():
        labels = exposition.labels(
            operation=operation, operation_trigger=trigger, operation_status=status
        )
        exposition.add(f"{_P}layout_operation_total", count, labels)
    for reason, count in measures.rebalances.items():
        labels = exposition.labels(rebalance_reason=reason)
        exposition.add(f"{_P}rebalance_total", count, labels)
    for status, count in measures.updates.items():
        labels = exposition.labels(operation_status=status)
        exposition.add(f"{_P}watch_update_total", count, labels)
