"""Waits until a batch is worth its cost: minRowsPerTrigger and maxTriggerDelay, as with Kafka.

A batch is planned when there are enough rows, or when the last one was planned long enough ago and
there are any. A query's first batch does not wait. Rows are estimated, like the limits.
"""

import time
from collections.abc import Callable, Mapping
from typing import Self

from pybroker.spark.offsets import Position
from pybroker.spark.options import Chosen
from pybroker.spark.reading.survey import Survey


class Delay:
    """Of one run of a query."""

    def __init__(
        self, least_rows: int | None, most_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._least_rows = least_rows
        self._most_s = most_s
        self._clock = clock
        self._planned_s: float | None = None

    @classmethod
    def of(cls, options: Chosen) -> Self:
        return cls(options["minRowsPerTrigger"], options["maxTriggerDelay"] / 1000)

    def holds_back(self, survey: Survey, starts: Mapping[str, Position]) -> bool:
        """Whether too few rows follow `starts` for now."""
        if self._least_rows is None or self._planned_s is None:
            return False
        if self._clock() - self._planned_s >= self._most_s:
            return False
        return _rows(survey, starts) < self._least_rows

    def planned(self) -> None:
        """Call when a batch with rows has been planned."""
        self._planned_s = self._clock()


def _rows(survey: Survey, starts: Mapping[str, Position]) -> float:
    behind = {topic: each.entries for topic, each in survey.behind(starts).items() if each.entries}
    samples = survey.samples({topic: starts[topic] for topic in behind})
    return sum(
        entries * (samples[topic].rows if topic in samples else 1.0)
        for topic, entries in behind.items()
    )
