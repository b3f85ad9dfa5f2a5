"""Writes the boards in this folder: `python docker/grafana/generate.py`.

A panel has a title, a unit and queries; a query has an expression and a legend. `@` stands for the
labels that the board's variables select.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

BOARDS: Final = Path(__file__).parent / "boards"
_SOURCE: Final = {"type": "prometheus", "uid": "pybroker"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3

Query = tuple[str, str]
Panel = tuple[str, str, Sequence[Query]]

_QUANTILES: Final = ("0.5", "0.99")


def _quantiles(histogram: str) -> list[Query]:
    return [
        (f"histogram_quantile({q}, sum by (le) (rate({histogram}_bucket@[$__rate_interval])))", q)
        for q in _QUANTILES
    ]


OVERVIEW: Final[Sequence[Panel]] = (
    ("Messages", "short", [("pulsar_broker_rate_in@", "in"), ("pulsar_broker_rate_out@", "out")]),
    (
        "Bytes",
        "Bps",
        [("pulsar_broker_throughput_in@", "in"), ("pulsar_broker_throughput_out@", "out")],
    ),
    ("Backlog", "short", [("pulsar_broker_msg_backlog@", "entries")]),
    (
        "Publish latency",
        "ms",
        [('pulsar_broker_publish_latency{quantile=~"0.5|0.99|1.0",@}', "{{quantile}}")],
    ),
    ("fdatasync", "s", _quantiles("pybroker_fsync_seconds")),
    ("Group commit", "s", _quantiles("pybroker_commit_seconds")),
    ("Entries and changes in a commit", "short", _quantiles("pybroker_commit_operations")),
    ("Event loop lag", "s", [("pybroker_loop_lag_seconds_max@", "longest")]),
    (
        "Connections",
        "short",
        [
            ("pulsar_active_connections@", "open"),
            ("pulsar_broker_throttled_connections@", "throttled"),
        ],
    ),
    (
        "Storage",
        "bytes",
        [("pulsar_broker_storage_size@", "topics"), ("pybroker_storage_free_bytes@", "free")],
    ),
    (
        "Memory",
        "bytes",
        [
            ("process_resident_memory_bytes@", "resident"),
            ("pulsar_broker_pending_bytes_to_dispatch@", "not yet read by clients"),
        ],
    ),
    ("CPU", "percentunit", [("rate(process_cpu_seconds_total@[$__rate_interval])", "cores")]),
    (
        "Topics and clients",
        "short",
        [
            (f"pulsar_broker_{what}_count@", what)
            for what in ("topics", "subscriptions", "producers", "consumers")
        ],
    ),
    (
        "Limits reached",
        "short",
        [
            ("rate(pybroker_limit_refusals_total@[$__rate_interval])", "{{limit}}"),
            ("pybroker_storage_full@", "the disk is full"),
            ("pybroker_ledgers_short_of_copies@", "open ledgers that are short of copies"),
        ],
    ),
    ("Rendering of a scrape", "s", [("pybroker_metrics_render_seconds@", "took")]),
    (
        "Groups of Kafka's clients",
        "short",
        [
            ("pybroker_kafka_groups@", "{{kind}}"),
            ("sum(pybroker_kafka_group_members@)", "members"),
        ],
    ),
    ("Their lag", "short", [("topk(10, pybroker_kafka_group_lag@)", "{{group}} {{topic}}")]),
    ("Their memory", "bytes", [("pybroker_kafka_group_members_bytes@", "members")]),
)
TOPIC: Final[Sequence[Panel]] = (
    ("Messages in", "short", [("pulsar_rate_in@", "{{topic}}")]),
    ("Messages out", "short", [("pulsar_subscription_msg_rate_out@", "{{subscription}}")]),
    ("Backlog", "short", [("pulsar_subscription_back_log@", "{{subscription}}")]),
    (
        "Writes, by latency",
        "short",
        [
            (f"sum(pulsar_storage_write_latency_{bound}@) / 60", bound.removeprefix("le_"))
            for bound in ("le_1", "le_5", "le_10", "le_50", "le_100", "le_1000", "overflow")
        ],
    ),
    (
        "Writes, by size",
        "short",
        [
            (f"sum(pulsar_entry_size_{bound}@) / 60", bound.removeprefix("le_"))
            for bound in ("le_128", "le_1_kb", "le_16_kb", "le_100_kb", "le_1_mb", "overflow")
        ],
    ),
    ("Storage", "bytes", [("pulsar_storage_size@", "{{topic}}")]),
    ("Not acknowledged", "short", [("pulsar_subscription_unacked_messages@", "{{subscription}}")]),
    ("Redelivered", "short", [("pulsar_subscription_msg_rate_redeliver@", "{{subscription}}")]),
    (
        "Blocked by transactions",
        "short",
        [("pybroker_txn_blocked_entries@", "{{topic}}")],
    ),
)
TRANSACTIONS: Final[Sequence[Panel]] = (
    ("Open", "short", [("sum(pulsar_txn_active_count@)", "transactions")]),
    ("Oldest", "s", [("max(pybroker_txn_oldest_open_seconds@)", "age")]),
    (
        "Ended",
        "short",
        [
            (f"sum(rate(pulsar_txn_{how}_count@[$__rate_interval]))", how)
            for how in ("committed", "aborted", "timeout")
        ],
    ),
    (
        "Transactions by duration",
        "short",
        [
            (f"sum(pulsar_txn_execution_latency_le_{bound}@) / 60", f"{bound} ms")
            for bound in ("10", "50", "100", "1000", "15000", "60000", "300000")
        ],
    ),
    ("Topics with blocked readers", "short", [("pybroker_txn_blocked_topics@", "topics")]),
    ("Blocked entries", "short", [("topk(10, pybroker_txn_blocked_entries@)", "{{topic}}")]),
    ("Blocked for", "s", [("topk(10, pybroker_txn_oldest_blocking_seconds@)", "{{topic}}")]),
    ("Held by open transactions", "bytes", [("topk(10, pybroker_txn_held_bytes@)", "{{topic}}")]),
    (
        "Prepared",
        "short",
        [
            ("sum(pybroker_txn_prepared_count@)", "wait for a decision"),
            ("sum(pybroker_txn_prepared_too_old_count@)", "were prepared for too long"),
        ],
    ),
    ("Prepared for", "s", [("max(pybroker_txn_oldest_prepared_seconds@)", "oldest")]),
    (
        "Records in the coordinators' logs",
        "short",
        [("sum(rate(pulsar_txn_append_log_count@[$__rate_interval]))", "records")],
    ),
)
SPARK: Final[Sequence[Panel]] = (
    ("Rows into the source", "short", [("sum by (topic) (pulsar_rate_in@)", "{{topic}}")]),
    (
        "Rows read by queries",
        "short",
        [("pulsar_subscription_msg_rate_out@", "{{subscription}}")],
    ),
    ("Behind", "short", [("pulsar_subscription_back_log@", "{{topic}} {{subscription}}")]),
    (
        "Batches committed",
        "short",
        [("sum by (topic) (rate(pulsar_txn_tb_committed_total@[$__rate_interval]))", "{{topic}}")],
    ),
    (
        "Batches aborted",
        "short",
        [("sum by (topic) (rate(pulsar_txn_tb_aborted_total@[$__rate_interval]))", "{{topic}}")],
    ),
    ("Batches being written", "short", [("pulsar_txn_tb_active_total@", "{{topic}}")]),
    (
        "Last acknowledgement",
        "s",
        [("time() - pulsar_subscription_last_acked_timestamp@ / 1000", "{{subscription}}")],
    ),
    ("Held until the batch commits", "bytes", [("pybroker_txn_held_bytes@", "{{topic}}")]),
    ("Entries blocked by a batch", "short", [("pybroker_txn_blocked_entries@", "{{topic}}")]),
)
# Each board's panels, and its variables: a label, and the metric with its values.
ALL: Final[Mapping[str, tuple[Sequence[Panel], Mapping[str, str]]]] = {
    "overview": (OVERVIEW, {}),
    "topic": (TOPIC, {"namespace": "pulsar_rate_in", "topic": "pulsar_rate_in"}),
    "transactions": (TRANSACTIONS, {}),
    "spark": (SPARK, {"namespace": "pulsar_rate_in", "topic": "pulsar_rate_in"}),
}


def _selected(expression: str, variables: Mapping[str, str]) -> str:
    labels = ",".join(f'{name}=~"${name}"' for name in ("cluster", *variables))
    inside = re.sub(r"\{([^{}]*)@\}", lambda match: f"{{{match[1]}{labels}}}", expression)
    return inside.replace("@", f"{{{labels}}}")


def _panel(number: int, panel: Panel, variables: Mapping[str, str]) -> dict[str, Any]:
    title, unit, queries = panel
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "title": title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": _selected(expression, variables),
                "legendFormat": legend,
            }
            for index, (expression, legend) in enumerate(queries)
        ],
    }


def _variable(name: str, metric: str, chosen: Sequence[str]) -> dict[str, Any]:
    labels = ",".join(f'{each}=~"${each}"' for each in chosen)
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values({metric}{{{labels}}}, {name})",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def board(name: str) -> dict[str, Any]:
    panels, variables = ALL[name]
    all_variables = {"cluster": "pulsar_version_info", **variables}
    names = list(all_variables)
    return {
        "uid": f"pybroker-{name}",
        "title": f"pybroker: {name}",
        "tags": ["pybroker"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                _variable(each, metric, names[:index])
                for index, (each, metric) in enumerate(all_variables.items())
            ]
        },
        "panels": [_panel(number, panel, variables) for number, panel in enumerate(panels)],
    }


def text(name: str) -> str:
    return json.dumps(board(name), indent=1) + "\n"


if __name__ == "__main__":
    for name in ALL:
        (BOARDS / f"{name}.json").write_text(text(name))
