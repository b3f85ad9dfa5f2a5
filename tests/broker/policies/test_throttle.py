"""Token buckets, on a loop with virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_loop import run_virtually

from pybroker.broker.policies.throttle import UNLIMITED, Throttle, throttle


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtually(scenario())


def test_a_period_s_tokens_are_there_at_once_and_the_next_come_in_time() -> None:
    async def scenario() -> None:
        rate = Throttle(10, 0)
        assert rate.take([b"x"] * 20, [1] * 20) == 10
        assert rate.take([b"x"], [1]) == 0
        assert rate.wait_s() == pytest.approx(0.1)
        await asyncio.sleep(0.5001)
        assert rate.take([b"x"] * 20, [1] * 20) == 5
        assert rate.refused == 3

    run(scenario)


def test_a_batch_may_overdraw_and_is_paid_for() -> None:
    async def scenario() -> None:
        rate = Throttle(10, 0)
        assert rate.take([b"x", b"y"], [35, 1]) == 1
        assert rate.wait_s() == pytest.approx(2.6)
        await asyncio.sleep(2.6001)
        assert rate.take([b"x", b"y"], [1, 1]) == 1

    run(scenario)


def test_bytes_are_limited_as_messages_are() -> None:
    async def scenario() -> None:
        rate = Throttle(0, 100)
        assert rate.messages_left() == UNLIMITED
        assert rate.take([b"x" * 60] * 5, [1] * 5) == 2
        assert rate.messages_left() == rate.bytes_left() == 0

    run(scenario)


def test_the_same_limits_keep_what_was_overdrawn() -> None:
    async def scenario() -> None:
        rate = throttle(None, 10, -1)
        assert rate is not None
        assert throttle(rate, 10, 0) is rate
        assert throttle(rate, 11, 0) is not rate
        assert throttle(rate, 0, -1) is None

    run(scenario)


def test_a_relative_limit_is_added_to_what_comes_in() -> None:
    """The incoming rate is measured once a period, so it counts in the next one."""

    async def scenario() -> None:
        came_in = [0, 0]
        rate = Throttle(10, 1000, 1.0, lambda: (came_in[0], came_in[1]))
        assert rate.take([b"x"] * 200, [1] * 200) == 10
        came_in[:] = 90, 900
        await asyncio.sleep(1.0001)
        assert rate.take([b"x"] * 200, [1] * 200) == 10  # the old capacity
        await asyncio.sleep(1.0001)
        assert rate.messages_left() == 10  # nothing more came in
        came_in[:] = 180, 1800
        await asyncio.sleep(0.5)
        assert rate.messages_left() == 10
        await asyncio.sleep(0.5001)
        rate.messages_left()
        await asyncio.sleep(0.9)
        assert 95 <= rate.messages_left() <= 100

    run(scenario)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 30), st.integers(1, 5)), max_size=30))
def test_no_more_than_the_rate_passes_in_the_long_run(
    steps: list[tuple[float, int, int]],
) -> None:
    async def scenario() -> None:
        rate, passed, loop = Throttle(10, 0), 0, asyncio.get_running_loop()
        began_s = loop.time()
        for sleep_s, entries, size in steps:
            await asyncio.sleep(sleep_s)
            passed += size * rate.take([b"x"] * entries, [size] * entries)
        assert passed <= 10 * (loop.time() - began_s) + 10 + 5 + 0.001

    run(scenario)
