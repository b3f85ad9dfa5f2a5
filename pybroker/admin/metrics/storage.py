"""Metrics of writes and reads: by topic, by namespace (the managed ledgers), and of the whole
storage.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import add
from typing import Final

from managed_ledger.factory import ManagedLedgerFactory
from pybroker.admin.metrics.distributions import add_histogram
from pybroker.admin.metrics.rows import rows
from pybroker.admin.metrics.windows import WINDOW_S, Windows
from pybroker.admin.stats.flows import Flow
from pybroker.admin.stats.rates import Rates
from pybroker.admin.stats.sums import Share
from pybroker.base.metrics import Exposition, Metric
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.persistent.write_counts import (
    LATENCIES,
    LATENCY_MS,
    LEDGER_LATENCIES,
    SIZE_BYTES,
    SIZES,
)

_MINUTE: Final = "in the last minute"


def _shown(bound: str) -> str:
    """`0_5` and `1_kb` in readable form."""
    return bound.replace("_kb", " KiB").replace("_mb", " MiB").replace("_", ".")


def _buckets(
    prefix: str, bounds: Sequence[str], overflows: Sequence[str], labels: str, what: str
) -> tuple[Metric, ...]:
    """A gauge for each bound, as in Apache Pulsar; those of `overflows` count values above all
    bounds.
    """
    source = "run by run"
    lower = ("0", *bounds)
    return (
        *(
            Metric(f"{prefix}_le_{bound}", "gauge", tuple(labels.split()), text, source)
            for bound, text in (
                (bound, f"{what} {_MINUTE}, above {_shown(below)} up to {_shown(bound)}.")
                for below, bound in zip(lower, bounds, strict=False)
            )
        ),
        *(
            Metric(
                f"{prefix}_{each}",
                "gauge",
                tuple(labels.split()),
                f"{what} {_MINUTE}, above all bounds.",
                source,
            )
            for each in overflows
        ),
        Metric(f"{prefix}_count", "gauge", tuple(labels.split()), f"{what} {_MINUTE}.", source),
        Metric(
            f"{prefix}_sum",
            "gauge",
            tuple(labels.split()),
            f"{what} {_MINUTE}: the sum.",
            source,
        ),
    )


_OVERFLOWS: Final = ("overflow", "le_overflow")  # for dashboards; as documented
_LATENCY_NAMES: Final = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000")
_SIZE_NAMES: Final = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb")
_WRITES: Final = _buckets(
    "pulsar_storage_write_latency",
    _LATENCY_NAMES,
    _OVERFLOWS,
    "namespace topic",
    "Entries by the milliseconds from their arrival until they are durable,",
)
_LEDGER_WRITES: Final = _buckets(
    "pulsar_storage_ledger_write_latency",
    _LATENCY_NAMES,
    _OVERFLOWS,
    "namespace topic",
    "Entries by the milliseconds that the storage took to write and sync them,",
)
_ENTRY_SIZES: Final = _buckets(
    "pulsar_entry_size",
    _SIZE_NAMES,
    _OVERFLOWS,
    "namespace topic",
    "Entries by size in bytes (four are sampled from each run),",
)
_OF_TOPIC: Final = (
    (_WRITES, LATENCIES, len(LATENCY_MS)),
    (_LEDGER_WRITES, LEDGER_LATENCIES, len(LATENCY_MS)),
    (_ENTRY_SIZES, SIZES, len(SIZE_BYTES)),
)
_RATES: Final = rows(
    "gauge",
    "namespace topic",
    """
pulsar_storage_write_rate | entries written | Entries written per second.
pulsar_storage_read_rate | entries read | Entries read from memory or the disk per second.
pulsar_storage_read_cache_misses_rate | entries read | Entries read from the disk per second.
""",
)
# By namespace. Apache Pulsar calls the bounds of its buckets quantiles.
_LEDGERS: Final = (
    *rows(
        "gauge",
        "namespace",
        """
pulsar_ml_AddEntryBytesRate | entries written | Bytes of entries written per second.
pulsar_ml_AddEntryWithReplicasBytesRate | entries written | Bytes of entries written per second; there is one replica.
pulsar_ml_AddEntryMessagesRate | entries written | Entries written per second.
pulsar_ml_AddEntrySucceed | entries written | Entries written in the last minute.
pulsar_ml_ReadEntriesRate | entries read | Entries read per second.
pulsar_ml_ReadEntriesSucceeded | entries read | Entries read in the last minute.
pulsar_ml_ReadEntriesOpsCacheMissesRate | entries read | Entries read from the disk per second.
pulsar_ml_NumberOfMessagesInBacklog | msgBacklog | Unacknowledged entries of all subscriptions.
pulsar_ml_StoredMessagesSize | storageSize | Size of the entries in bytes.
pulsar_ml_AddEntryLatencyBuckets_OVERFLOW | run by run | Entries that took longer than all bounds, in the last minute.
pulsar_ml_LedgerAddEntryLatencyBuckets_OVERFLOW | run by run | Entries that the storage took longer to write than all bounds, in the last minute.
pulsar_ml_EntrySizeBuckets_OVERFLOW | run by run | Entries larger than all bounds, in the last minute.
""",
    ),
    *rows(
        "gauge",
        "namespace quantile",
        """
pulsar_ml_AddEntryLatencyBuckets | run by run | Entries by milliseconds until they are durable, in the last minute.
pulsar_ml_LedgerAddEntryLatencyBuckets | run by run | Entries by the milliseconds that the storage took to write them, in the last minute.
pulsar_ml_EntrySizeBuckets | run by run | Entries by size in bytes, in the last minute.
""",
    ),
)
_STORAGE: Final = (
    *rows(
        "gauge",
        "",
        """
pulsar_ml_count | open logs | Open managed ledgers.
pulsar_ml_cache_used_size | block cache | Bytes of entries in the read cache.
pulsar_ml_cache_hits_rate | entries read | Entries of all topics read from memory per second.
pulsar_ml_cache_misses_rate | entries read | Entries of all topics read from the disk per second.
pybroker_commit_seconds_recent | group commit | Recent duration of group commits: a mean in which older ones count less.
pybroker_storage_full | fullness | 1: messages are refused for lack of disk space.
pybroker_storage_free_bytes | fullness | Free space on the disk at the last check, in bytes.
pybroker_ledgers_short_of_copies | bookies | In a cluster: open ledgers whose new entries get fewer copies than managedLedgerDefaultWriteQuorum, because bookies are missing.
""",
    ),
    *rows(
        "counter",
        "",
        """
pybroker_storage_refused_writes_total | fullness | Writes refused for lack of disk space.
""",
    ),
    *rows(
        "histogram",
        "",
        """
pybroker_fsync_seconds | group commit | Duration of fdatasync of the journal.
pybroker_commit_seconds | group commit | Duration of a group commit, from the hand-over to the storage until it was durable.
pybroker_commit_operations | group commit | Appends and metadata changes in a group commit.
pybroker_commit_bytes | group commit | Bytes in a group commit.
""",
    ),
)
ROWS: Final = (*_WRITES, *_LEDGER_WRITES, *_ENTRY_SIZES, *_RATES, *_LEDGERS, *_STORAGE)


def _ranges(bounds: Sequence[float]) -> list[str]:
    return [f"{below:.1f}_{bound:.1f}" for below, bound in pairwise((0, *bounds))]


_BUCKETS: Final = (
    ("AddEntryLatencyBuckets", LATENCIES, _ranges(LATENCY_MS)),
    ("LedgerAddEntryLatencyBuckets", LEDGER_LATENCIES, _ranges(LATENCY_MS)),
    ("EntrySizeBuckets", SIZES, _ranges(SIZE_BYTES)),
)


_FLOWS: Final = (
    "pulsar_ml_AddEntryMessagesRate",
    "pulsar_ml_ReadEntriesRate",
    "pulsar_ml_ReadEntriesOpsCacheMissesRate",
)


class _Namespace:
    """Sums over the topics of a namespace. `flows` are entries per second, in the order of
    `_FLOWS`.
    """

    __slots__ = ("backlog", "counts", "flows", "read_entries", "stored_bytes")

    def __init__(self) -> None:
        self.counts: array[float] | None = None  # of the last minute
        self.flows: Flow = (0.0,) * len(_FLOWS)
        self.backlog = self.stored_bytes = self.read_entries = 0

    def add_counts(self, counts: "array[float]") -> None:
        if self.counts is None:
            self.counts = array("d", counts)
        else:
            for index, count in enumerate(counts):
                self.counts[index] += count


class StorageSamples:
    """Adds the samples of one scrape: those of topics, then of namespaces and of the storage."""

    def __init__(
        self, exposition: Exposition, rates: Rates, windows: Windows, with_topics: bool
    ) -> None:
        self._with_topics = with_topics
        self._exposition = exposition
        self._rates = rates
        self._windows = windows
        self._namespaces: dict[str, _Namespace] = {}

    @property
    def totals(self) -> Mapping[str, float]:
        """The rates summed over all topics, by the names of a topic's metrics."""
        flows = [namespace.flows for namespace in self._namespaces.values()]
        return {each.name: sum(flow[at] for flow in flows) for at, each in enumerate(_RATES)}

    def rates_of(self, topic: Topic) -> Flow:
        """Rates of entries written, read, and read from the disk."""
        name, ledger = str(topic.name), topic.ledger
        return (
            self._rates.of((name, "written"), topic.writes.entries),
            self._rates.of((name, "read"), ledger.read_entries),
            self._rates.of((name, "missed"), ledger.missed_entries),
        )

    def add_topic(self, topic: Topic, share: Share, rates: Flow) -> None:
        """`rates` are the result of `rates_of`."""
        exposition, labels = self._exposition, ""
        if self._with_topics:
            labels = exposition.labels(namespace=topic.name.namespace_name, topic=str(topic.name))
            for metric, rate in zip(_RATES, rates, strict=True):
                exposition.add(metric.name, rate, labels)
        namespace = self._of(topic.name.namespace_name)
        if any(rates):
            namespace.flows = tuple(map(add, namespace.flows, rates))
        namespace.backlog += share.backlog
        namespace.stored_bytes += share.stored_bytes
        namespace.read_entries += topic.ledger.read_entries
        if topic.writes.entries:
            self._add_writes(topic, labels, namespace)

    def _of(self, name: str) -> _Namespace:
        found = self._namespaces.get(name)
        if found is None:
            found = self._namespaces[name] = _Namespace()
        return found

    def _add_writes(self, topic: Topic, labels: str, namespace: _Namespace) -> None:
        """Adds the write latencies and sizes. Only for a topic that was written to."""
        counts = self._windows.of(str(topic.name), topic.writes.counts)
        namespace.add_counts(counts)
        if not self._with_topics:
            return
        add = self._exposition.add
        for metrics, first, bounds in _OF_TOPIC:
            above = first + bounds
            for index in range(bounds):
                add(metrics[index].name, counts[first + index], labels)
            add(metrics[bounds].name, counts[above], labels)
            add(metrics[bounds + 1].name, counts[above], labels)
            add(metrics[bounds + 2].name, sum(counts[first : above + 1]), labels)
            add(metrics[bounds + 3].name, counts[above + 1], labels)

    def add_namespaces(self) -> None:
        exposition = self._exposition
        for name, namespace in self._namespaces.items():
            whole = f"{name}/persistent"
            labels = exposition.labels(namespace=whole)
            counts, sums = namespace.counts, dict(zip(_FLOWS, namespace.flows, strict=True))
            sums["pulsar_ml_NumberOfMessagesInBacklog"] = namespace.backlog
            sums["pulsar_ml_StoredMessagesSize"] = namespace.stored_bytes
            (read,) = self._windows.of(f"{name} reads", (namespace.read_entries,))
            sums["pulsar_ml_ReadEntriesSucceeded"] = read
            if counts is not None:
                sums["pulsar_ml_AddEntrySucceed"] = sum(counts[: LEDGER_LATENCIES - 1])
                bytes_per_s = counts[-1] / WINDOW_S
                sums["pulsar_ml_AddEntryBytesRate"] = bytes_per_s
                sums["pulsar_ml_AddEntryWithReplicasBytesRate"] = bytes_per_s
                self._add_buckets(whole, counts)
            for metric, value in sums.items():
                exposition.add(metric, value, labels)

    def _add_buckets(self, namespace: str, counts: "array[float]") -> None:
        exposition = self._exposition
        for bucket, first, ranges in _BUCKETS:
            metric = f"pulsar_ml_{bucket}"
            for index, bounds in enumerate(ranges):
                labels = exposition.labels(namespace=namespace, quantile=bounds)
                exposition.add(metric, counts[first + index], labels)
            labels = exposition.labels(namespace=namespace)
            exposition.add(f"{metric}_OVERFLOW", counts[first + len(ranges)], labels)

    def add_storage(self, ledgers: ManagedLedgerFactory) -> None:
        exposition, fullness, commits = self._exposition, ledgers.fullness, ledgers.commit_stats
        exposition.add("pybroker_storage_full", int(fullness.is_full))
        exposition.add("pybroker_storage_refused_writes_total", fullness.refused)
        if fullness.free_bytes is not None:
            exposition.add("pybroker_storage_free_bytes", fullness.free_bytes)
        exposition.add("pybroker_ledgers_short_of_copies", ledgers.short_of_copies)
        exposition.add("pulsar_ml_count", ledgers.open_count)
        if (cached_bytes := ledgers.cached_bytes) is not None:
            exposition.add("pulsar_ml_cache_used_size", cached_bytes)
        _, read, missed = self.totals.values()
        exposition.add("pulsar_ml_cache_hits_rate", read - missed)
        exposition.add("pulsar_ml_cache_misses_rate", missed)
        if commits.fsync_seconds.count:
            add_histogram(exposition, "pybroker_fsync_seconds", commits.fsync_seconds)
        add_histogram(exposition, "pybroker_commit_seconds", commits.seconds)
        exposition.add("pybroker_commit_seconds_recent", commits.recent_s)
        add_histogram(exposition, "pybroker_commit_operations", commits.operations)
        add_histogram(exposition, "pybroker_commit_bytes", commits.size_bytes)
