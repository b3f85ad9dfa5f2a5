"""Keys pressed while a terminal shows live data."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Pressed = Callable[[float], str]  # waits at most that many seconds for a key; empty: none


@contextmanager
def single_keys() -> Iterator[Pressed]:
    """Each key at once, without Enter, if there is a keyboard."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield lambda seconds: _key(keyboard, seconds)
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _key(keyboard: int, seconds: float) -> str:
    ready, _, _ = select.select([keyboard], [], [], seconds)
    return (os.read(keyboard, 1) or b"q").decode("latin-1") if ready else ""  # it has gone: leave


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""
