"""Reads single keys while a terminal shows live data."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Pressed = Callable[[float], str]  # waits up to that many seconds; returns the key, or an empty text


@contextmanager
def single_keys() -> Iterator[Pressed]:
    """Yields a function that returns each key at once, without Enter, if there is a keyboard."""
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
    return (os.read(keyboard, 1) or b"q").decode("latin-1") if ready else ""  # the terminal is gone


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""
