"""Counts of the last minute, because Apache Pulsar's counts by bucket cover a minute and its
dashboards divide them by 60.

A minute ends with the first scrape at least 60 s after it began; the counts of a longer one are
scaled down to 60 s. Until the first minute has ended, the counts from before it are shown.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from pybroker.base.runtime import Clock

WINDOW_S: Final = 60.0
_MAX_COUNTS: Final = 20_000  # a topic's counts take less than a kilobyte


class _Window:
    __slots__ = ("began_s", "counts", "shown")

    def __init__(self, began_s: float, counts: "array[float]") -> None:
        self.began_s = began_s
        self.counts = self.shown = counts


class Windows:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def of(self, name: str, counts: Sequence[float]) -> "array[float]":
        """The counts of the last complete minute. `counts` only grow; smaller counts than before
        are those of a restarted counter.
        """
        now_s, window = self._clock.monotonic_s(), self._windows.pop(name, None)
        if window is None or sum(counts) < sum(window.counts):
            window = _Window(now_s, array("d", counts))
        elif (passed_s := now_s - window.began_s) >= WINDOW_S:
            scale = WINDOW_S / passed_s
            window.shown = array(
                "d",
                (scale * (now - then) for now, then in zip(counts, window.counts, strict=True)),
            )
            window.began_s, window.counts = now_s, array("d", counts)
        self._windows[name] = window  # the most recently read window is last
        if len(self._windows) > _MAX_COUNTS:
            del self._windows[next(iter(self._windows))]
        return window.shown
