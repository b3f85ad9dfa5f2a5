"""The time limits of single tests grow with the slowness of the machine, measured once a process.

They end tests that hang. A machine whose processor is slow, limited or busy makes honest tests
slower by as much, and must not fail them.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

_ROUNDS: Final = 100_000
_USUAL_S: Final = 0.04  # for these rounds, on the machine for which the limits are written
_MOST: Final = 8.0  # a test that hangs must end some day


def slowness() -> float:
    """How many times longer than usual work takes here: 1 to 8."""
    started = time.perf_counter()
    sum(len(str({number: hash((number, "x"))})) for number in range(_ROUNDS))
    return min(_MOST, max(1.0, (time.perf_counter() - started) / _USUAL_S))


def longest_first(items: list[pytest.Item]) -> None:
    """Sort by file: those with the longest time limits begin first, so that no process is left with
    one of them when the others are done. Call it after `give_time`.
    """
    limits: dict[Path, float] = {}
    for item in items:
        limit = item.get_closest_marker("timeout")
        assert limit is not None
        limits[item.path] = max(limit.args[0], limits.get(item.path, 0.0))
    items.sort(key=lambda item: -limits[item.path])


def give_time(items: Iterable[pytest.Item], usual_s: float, times: float) -> None:
    """Multiply the limit of each test, its own or `usual_s`; 0 is no limit."""
    for item in items:
        own = item.get_closest_marker("timeout")
        limit_s = usual_s if own is None else own.args[0]
        item.add_marker(pytest.mark.timeout(limit_s * times), append=False)
