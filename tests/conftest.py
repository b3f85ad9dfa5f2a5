"""What several test packages share stands in tests/support and is imported by its module's name.

An error in an event loop's callback reaches nobody who awaits: here it fails the test. How long an
example of Hypothesis or an answer over HTTP takes says how busy the machine is, and fails none.
Hypothesis draws the same examples in each run: few in `make check`, which asks for its profile
`quick`, and a hundred otherwise; `--hypothesis-profile fresh` draws many new ones.
A test's limit of time is for a quiet machine: it grows with what this one is slower.
What is there when all tests are collected stays to the end: the garbage collector leaves it alone.
"""

import gc
import logging
import sys
from asyncio.base_events import BaseEventLoop
from collections.abc import Generator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "support"))

from machine_speed import give_time, longest_first, slowness
from patience import be_patient_with_answers

import pybroker.testing
from pybroker.logs.output import LogOutput

be_patient_with_answers()
# A test that does not ask for fault points talks to the session that production has.
pybroker.testing.broker.__wrapped__.__kwdefaults__["faults"] = False  # type: ignore[attr-defined]

TIMED = [HealthCheck.too_slow]
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=TIMED)
settings.register_profile("quick", settings.get_profile("steady"), max_examples=20)
settings.register_profile("fresh", deadline=None, max_examples=2000, suppress_health_check=TIMED)
settings.load_profile("steady")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    gc.disable()
    result = yield
    gc.enable()
    gc.collect()
    gc.freeze()
    return result


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = config.getoption("timeout")
    give_time(items, float(config.getini("timeout") if asked is None else asked), slowness())
    longest_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    broken: list[dict[str, Any]] = []
    handle = BaseEventLoop.default_exception_handler

    def heard(loop: BaseEventLoop, context: dict[str, Any]) -> None:
        if "handle" in context:
            broken.append(context)
        handle(loop, context)

    with patch.object(BaseEventLoop, "default_exception_handler", heard):
        result = yield
    # It writes to a descriptor, which is somebody else's socket once the test's output is closed.
    left = [each for each in logging.getLogger().handlers if isinstance(each, LogOutput)]
    logging.getLogger().handlers[:] = set(logging.getLogger().handlers) - set(left)
    assert not left, "the log of a whole process was set up here: start a process"
    assert not broken, f"callbacks failed: {broken}"
    return result
