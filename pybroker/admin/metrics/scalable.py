"""Metrics of scalable topics. They are there once a topic is used: before, nothing is loaded."""

from typing import Final

from pybroker.admin.metrics.distributions import add_histogram
from pybroker.admin.metrics.rows import rows
from pybroker.admin.services import AdminServices
from pybroker.base.metrics import Exposition
from pybroker.broker.scalable.measures import ScalableMeasures

_P: Final = "pulsar_scalable_topic_"
ROWS: Final = (
    *rows(
        "gauge",
        "",
        """
pulsar_scalable_topic_controller_count | controllers | Scalable topics that this broker controls.
pulsar_scalable_topic_segment_blocked_count | controllers | Segments that groups of stream consumers get once their ancestors are drained.
pulsar_scalable_topic_leaderless_count | controllers | Scalable topics of this broker whose last change could not be carried out yet; the log says why.
pulsar_scalable_topic_entry_bucket_draining_count | dispatch | Entry buckets that wait until their former consumer has acknowledged what it holds.
pulsar_scalable_topic_segment_unwritable_count | records | Active segments in memory that take no messages, because somebody has terminated them.
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
pulsar_scalable_topic_layout_operation_total | records | Splits, merges, rebuckets and prunings since the start.
""",
    ),
    *rows(
        "histogram",
        "operation operation_status",
        """
pulsar_scalable_topic_layout_operation_duration_seconds | records | How long splits, merges, rebuckets and prunings took.
""",
    ),
    *rows(
        "histogram",
        "operation",
        """
pulsar_scalable_topic_layout_seal_duration_seconds | records | How long parents remained open for producers that were leaving them.
""",
    ),
    *rows(
        "histogram",
        "operation_status",
        """
pulsar_scalable_topic_controller_takeover_duration_seconds | controllers | How long it took to carry out the record of a topic that this broker had not used before.
""",
    ),
    *rows(
        "histogram",
        "request_type operation_status",
        """
pulsar_scalable_topic_request_duration_seconds | commands of the V5 SDK | How long its requests took.
""",
    ),
    *rows(
        "counter",
        "load_report_result",
        """
pulsar_scalable_topic_segment_load_report_total | auto-scaling | Measurements of segments' loads since the start.
""",
    ),
    *rows(
        "counter",
        "entry_bucket_violation",
        """
pulsar_scalable_topic_entry_bucket_violation_total | dispatch | Entries for consumers that share a segment whose keys may be in several entry buckets, so their order is not kept.
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
_LABELS: Final = {metric.name: metric.labels for metric in ROWS}


def add_scalable(exposition: Exposition, services: AdminServices) -> None:
    if not services.topics.has_scalable:
        return
    scalable = services.topics.scalable
    measures = scalable.measures
    exposition.add(f"{_P}controller_count", len(scalable.owned()))
    exposition.add(f"{_P}segment_blocked_count", measures.blocked())
    exposition.add(f"{_P}leaderless_count", scalable.taking_over())
    exposition.add(f"{_P}segment_unwritable_count", scalable.counts.unwritable())
    exposition.add(f"{_P}entry_bucket_draining_count", scalable.counts.draining_buckets())
    for state, count in scalable.counts.states().items():
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
    for violation, count in measures.violations.items():
        labels = exposition.labels(entry_bucket_violation=violation)
        exposition.add(f"{_P}entry_bucket_violation_total", count, labels)
    for reason, count in measures.rebalances.items():
        labels = exposition.labels(rebalance_reason=reason)
        exposition.add(f"{_P}rebalance_total", count, labels)
    for status, count in measures.updates.items():
        labels = exposition.labels(operation_status=status)
        exposition.add(f"{_P}watch_update_total", count, labels)
    for result, count in measures.loads.items():
        labels = exposition.labels(load_report_result=result)
        exposition.add(f"{_P}segment_load_report_total", count, labels)
    _add_durations(exposition, measures)


def _add_durations(exposition: Exposition, measures: ScalableMeasures) -> None:
    for name, durations in (
        (f"{_P}layout_operation_duration_seconds", measures.operations_s),
        (f"{_P}layout_seal_duration_seconds", measures.seals_s),
        (f"{_P}controller_takeover_duration_seconds", measures.takeovers_s),
        (f"{_P}request_duration_seconds", measures.requests_s),
    ):
        labels = _LABELS[name]
        for values, histogram in durations.items():
            said = dict(zip(labels, values, strict=True))
            add_histogram(exposition, name, histogram, **said)
