"""What the metrics of scalable topics count. Source: Apache Pulsar 5.0's metrics."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from managed_ledger.histogram import SECONDS, Histogram
from pybroker.base.runtime import Clock

SUCCESS = "success"
FAILURE = "failure"


class Operation(NamedTuple):
    """A change of one topic's layout."""

    name: str
    trigger: str  # manual, auto
    segments: tuple[int, ...]
    status: str  # success, failure
    at_ms: int
    error: str | None


class Durations(dict[tuple[str, ...], Histogram]):
    """In seconds, by the values of the labels."""

    def add(self, labels: tuple[str, ...], took_s: float) -> None:
        if labels not in self:
            self[labels] = Histogram(SECONDS)
        self[labels].add(took_s)

    @contextmanager
    def measured(self, clock: Clock, *labels: str) -> Iterator[None]:
        """The last label is the status."""
        status, begun_s = FAILURE, clock.monotonic_s()
        try:
            yield
            status = SUCCESS
        finally:
            self.add((*labels, status), clock.monotonic_s() - begun_s)


def _none() -> Counter[str]:
    return Counter()


@dataclass(slots=True)
class ScalableMeasures:
    """Counted since the start; the callables tell of now, and are set by whoever knows."""

    operations: Counter[tuple[str, str, str]] = field(
        default_factory=Counter
    )  # with trigger, status
    operations_s: Durations = field(default_factory=Durations)  # by operation, status
    seals_s: Durations = field(default_factory=Durations)  # by operation
    takeovers_s: Durations = field(default_factory=Durations)  # by status
    requests_s: Durations = field(default_factory=Durations)  # of clients, by type, status
    loads: Counter[str] = field(default_factory=Counter)  # looked at, by status
    violations: Counter[str] = field(default_factory=Counter)  # of entry buckets, by reason
    rebalances: Counter[str] = field(default_factory=Counter)  # by reason
    updates: Counter[str] = field(default_factory=Counter)  # told to watches, by status
    consumers: Callable[[], Counter[str]] = _none  # of groups, by state
    blocked: Callable[[], int] = lambda: 0  # segments that wait for their ancestors
    watches: Callable[[], Counter[str]] = _none  # by type
