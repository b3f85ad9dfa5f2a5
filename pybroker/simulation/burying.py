"""Ends the suspended coroutines of a dead process, so that their collection runs no code."""

import contextlib
import inspect
import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

_GENTLY: Final = 50  # rounds; each `finally` with an await needs one
_FIRMLY: Final = 50
_PASSED: Final = 10  # lines


def end(coroutine: Any) -> None:
    """Closes a coroutine, from the innermost one outwards. If one awaits during its cleanup, it is
    closed again at that point.

    `while True: try: await … except BaseException: …` continues whenever it is closed. Without a
    running loop it would not even await, and its collection would never end. So an exception is
    raised at its next lines: sooner or later, one is outside of that `try`.
    """
    for number in range(_GENTLY + _FIRMLY):
        chain = [coroutine]
        while inspect.iscoroutine(inner := chain[-1].cr_await) and inner.cr_frame is not None:
            chain.append(inner)
        with contextlib.suppress(BaseException):
            if number < _GENTLY:
                chain[-1].close()
            else:
                _break(chain[-1], number % _PASSED)
        if coroutine.cr_frame is None:
            return


def _break(coroutine: Any, passed: int) -> None:
    """Raises at the next line but `passed`: which one is inside of a `try` depends on Python."""
    tracing = sys.gettrace()
    coroutine.cr_frame.f_trace = raising = _raising_after(passed)
    sys.settrace(raising)
    try:
        coroutine.close()
    finally:
        sys.settrace(tracing)


def _raising_after(passed: int) -> Callable[[FrameType, str, object], Any]:
    lines = itertools.count()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and next(lines) >= passed:
            raise GeneratorExit
        return trace

    return trace
