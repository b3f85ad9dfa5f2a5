"""Prometheus summaries and histograms from counts by bound."""

import math
from collections.abc import Sequence

from managed_ledger.histogram import Histogram
from pybroker.admin.metrics.windows import Windows
from pybroker.base.metrics import Exposition


def quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float:
    """The smallest bound that at least this share of the values does not exceed; NaN without
    values.
    """
    total = sum(counts)
    if not total:
        return math.nan
    below = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        below += count
        if count and below >= share * total:
            return bound
    return math.inf


def add_summary(
    exposition: Exposition,
    windows: Windows,
    names: Sequence[str],
    histogram: Histogram,
    shares: Sequence[float],
    **labels: str,
) -> None:
    """Adds quantiles of the last minute, and count and sum since the start."""
    key = "".join((names[0], *labels.values()))
    counts = windows.of(key, histogram.counts)
    for name in names:
        for share in shares:
            value = quantile(histogram.bounds, counts, share)
            exposition.add(name, value, exposition.labels(**labels, quantile=str(share)))
        plain = exposition.labels(**labels)
        exposition.add(name, histogram.count, plain, "_count")
        exposition.add(name, histogram.total, plain, "_sum")


def add_histogram(exposition: Exposition, name: str, histogram: Histogram, **labels: str) -> None:
    for bound, count in histogram.cumulative():
        within = exposition.labels(**labels, le=str(float(bound)))
        exposition.add(name, count, within, "_bucket")
    count, plain = histogram.count, exposition.labels(**labels)
    exposition.add(name, count, exposition.labels(**labels, le="+Inf"), "_bucket")
    exposition.add(name, count, plain, "_count")
    exposition.add(name, histogram.total, plain, "_sum")
