"""What the metrics of scalable topics count. Source: Apache Pulsar 5.0's metrics."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple


class Operation(NamedTuple):
    """A change of one topic's layout."""

    name: str
    trigger: str  # manual, auto
    segments: tuple[int, ...]
    status: str  # success, failure
    at_ms: int
    error: str | None


def _nobody() -> Counter[str]:
    return Counter()


@dataclass(slots=True)
class ScalableMeasures:
    """Counted since the start; the callables tell of now, and are set by whoever knows."""

    operations: Counter[tuple[str, str, str]] = field(
        default_factory=Counter
    )  # with trigger, status
    rebalances: Counter[str] = field(default_factory=Counter)  # by reason
    updates: Counter[str] = field(default_factory=Counter)  # told to watches, by status
    consumers: Callable[[], Counter[str]] = _nobody  # of groups, by state
    blocked: Callable[[], int] = lambda: 0  # segments that wait for their ancestors
    watches: Callable[[], Counter[str]] = _nobody  # by type
