"""A test's limit of time grows with the slowness of the machine."""

from types import SimpleNamespace

import machine_speed
import pytest
from machine_speed import give_time, slowness


def limit_s(request: pytest.FixtureRequest) -> float:
    marker = request.node.get_closest_marker("timeout")
    assert marker is not None
    return float(marker.args[0])


def test_the_usual_limit_is_at_least_what_the_project_says(request: pytest.FixtureRequest) -> None:
    usual_s = float(request.config.getini("timeout"))
    assert 1 <= limit_s(request) / usual_s <= 8


@pytest.mark.timeout(1000)
def test_so_is_a_limit_of_a_test_s_own(request: pytest.FixtureRequest) -> None:
    measured_s = limit_s(request)
    assert 1 <= measured_s / 1000 <= 8
    give_time([request.node], 300, 3.5)
    assert limit_s(request) == measured_s * 3.5


@pytest.mark.parametrize(("took_s", "times"), [(0.02, 1.0), (0.04, 1.0), (0.14, 3.5), (4.0, 8.0)])
def test_what_takes_longer_than_usual_gets_as_much_more_time(
    monkeypatch: pytest.MonkeyPatch, took_s: float, times: float
) -> None:
    clock = iter([100.0, 100.0 + took_s])
    monkeypatch.setattr(machine_speed, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert slowness() == pytest.approx(times)
