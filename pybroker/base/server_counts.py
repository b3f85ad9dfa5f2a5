"""The counts of the binary protocol's server, for metrics: connections, lookups and refusals."""

from collections import Counter
from typing import Final

from managed_ledger.histogram import Histogram, geometric

_MS: Final = geometric(0.01, 60_000, 1.1)  # quantiles are accurate to within a tenth


class ServerCounts:
    """Counts since the start. `refused` is keyed by the name of the limit reached."""

    def __init__(self) -> None:
        self.connections_created = 0
        self.connections_logged_in = 0
        self.connections_failed = 0  # refused, or closed before login
        self.connections_closed = 0
        self.lookup_ms = Histogram(_MS)
        self.lookups_pending = 0
        self.lookups_redirected = 0  # to the broker that should take the topic
        self.lookups_failed = 0
        self.schema_get_ms: dict[str, Histogram] = {}  # by namespace
        self.refused: Counter[str] = Counter()

    def schema_read(self, namespace: str, took_ms: float) -> None:
        histogram = self.schema_get_ms.get(namespace)
        if histogram is None:
            histogram = self.schema_get_ms[namespace] = Histogram(_MS)
        histogram.add(took_ms)
