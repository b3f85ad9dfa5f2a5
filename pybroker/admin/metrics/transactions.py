"""Metrics of the transaction coordinators."""

from typing import Final

from pybroker.admin.metrics.rows import rows
from pybroker.admin.metrics.windows import Windows
from pybroker.base.metrics import Exposition, Metric
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.coordinator_stats import EXECUTION_MS

_LATENCY: Final = "pulsar_txn_execution_latency_le"
ROWS: Final = (
    *rows(
        "gauge",
        "coordinator_id",
        """
pulsar_txn_active_count | coordinatorStats | Transactions that are open or ending.
pybroker_txn_oldest_open_seconds | coordinator | Age of the oldest transaction that is open or ending.
pulsar_txn_created_count | coordinatorStats | Transactions begun since the start.
pulsar_txn_committed_count | coordinatorStats | Transactions that have committed.
pulsar_txn_aborted_count | coordinatorStats | Transactions that have aborted.
pulsar_txn_timeout_count | coordinatorStats | Transactions that were aborted because their timeout had passed.
pybroker_txn_prepared_count | coordinator | Transactions that are prepared, and wait for their owners' decisions.
pybroker_txn_oldest_prepared_seconds | coordinator | How long the oldest of them has been prepared.
pybroker_txn_prepared_too_old_count | coordinator | Transactions that exceeded preparedTransactionMaxAgeMs since the coordinator was loaded.
pulsar_txn_append_log_count | coordinator's log | Records appended to the coordinator's log.
""",
    ),
    *(
        Metric(
            f"{_LATENCY}_{bound}",
            "gauge",
            ("coordinator_id",),
            f"Transactions that ended in the last minute, by the milliseconds that they took: above {below} up to {bound}.",
            "coordinator",
        )
        for below, bound in zip((0, *EXECUTION_MS), EXECUTION_MS, strict=False)
    ),
    Metric(
        f"{_LATENCY}_overflow",
        "gauge",
        ("coordinator_id",),
        "Transactions that ended in the last minute and took longer than all bounds.",
        "coordinator",
    ),
)


def add_coordinator(
    exposition: Exposition, coordinator: TransactionCoordinator, windows: Windows, now_ms: int
) -> None:
    stats = coordinator.stats()
    number = str(stats.coordinator_id)
    labels = exposition.labels(coordinator_id=number)
    exposition.add("pulsar_txn_active_count", stats.active, labels)
    exposition.add("pulsar_txn_created_count", stats.opened, labels)
    exposition.add("pulsar_txn_committed_count", stats.committed, labels)
    exposition.add("pulsar_txn_aborted_count", stats.aborted, labels)
    exposition.add("pulsar_txn_timeout_count", stats.timed_out, labels)
    exposition.add("pulsar_txn_append_log_count", stats.appended, labels)
    live = coordinator.live()  # oldest first, and there may be very many
    oldest_ms = live[0].opened_at_ms if live else now_ms
    age_s = max(0, now_ms - oldest_ms) / 1000
    exposition.add("pybroker_txn_oldest_open_seconds", age_s, labels)
    _add_prepared(exposition, coordinator, labels, now_ms)
    counts = windows.of(f"coordinator {number}", stats.execution_ms.counts)
    for bound, count in zip((*EXECUTION_MS, "overflow"), counts, strict=True):
        exposition.add(f"{_LATENCY}_{bound}", count, labels)


def _add_prepared(
    exposition: Exposition, coordinator: TransactionCoordinator, labels: str, now_ms: int
) -> None:
    exposition.add("pybroker_txn_prepared_count", len(coordinator.prepared), labels)
    oldest = next(iter(coordinator.prepared), None)
    since_ms = now_ms if oldest is None or oldest.prepared is None else oldest.prepared.at_ms
    age_s = max(0, now_ms - since_ms) / 1000
    exposition.add("pybroker_txn_oldest_prepared_seconds", age_s, labels)
    too_old = coordinator.preparing.too_old
    exposition.add("pybroker_txn_prepared_too_old_count", too_old, labels)
