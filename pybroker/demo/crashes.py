"""Labelled crash points. "driver@published:3" kills the driver when it reaches `published` for the
third time, "broker@marked:2" kills the broker while the driver continues, and "hold@acknowledged:2"
waits there until a file appears.

A plan is a comma-separated list of crash points. The driver itself performs the action, so that it
happens exactly between two steps of a transaction.
"""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

_HOLD_POLL_S = 0.1


class CrashPoint(NamedTuple):
    victim: str
    label: str
    occurrence: int

    @classmethod
    def parse(cls, text: str) -> "CrashPoint":
        victim, _, place = text.strip().partition("@")
        label, _, occurrence = place.partition(":")
        return cls(victim, label, int(occurrence or 1))


class CrashPlan:
    """A plan that several streaming queries share, each on its own thread."""

    def __init__(self, text: str, broker_pid_file: Path, hold_file: Path) -> None:
        self._points = [CrashPoint.parse(part) for part in text.split(",") if part.strip()]
        self._broker_pid_file = broker_pid_file
        self._hold_file = hold_file
        self._reached: Counter[str] = Counter()
        self._lock = threading.Lock()

    def reach(self, label: str) -> None:
        with self._lock:
            self._reached[label] += 1
            count = self._reached[label]
        for point in self._points:
            if (point.label, point.occurrence) == (label, count):
                self._carry_out(point)

    def _carry_out(self, point: CrashPoint) -> None:
        print(f"crash point: {point.victim} at {point.label}", flush=True)
        if point.victim == "driver":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        elif point.victim == "broker":
            self._kill_broker()
        else:
            self._hold()

    def _kill_broker(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(self._broker_pid_file.read_text()), signal.SIGKILL)

    def _hold(self) -> None:
        self._hold_file.with_suffix(".holding").touch()
        while not self._hold_file.exists():
            time.sleep(_HOLD_POLL_S)
