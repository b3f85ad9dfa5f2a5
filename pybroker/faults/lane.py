"""Keeps work in order while a part of it waits."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from pybroker.faults.rule import Rule

Job = Callable[[], None]
T = TypeVar("T")


class Lane:
    """Runs jobs in order. A job runs at once unless an earlier one waits."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Job, int]] = deque()
        self.is_busy = False
        self.size_bytes = 0  # of waiting jobs

    def run(self, job: Job, size_bytes: int = 0) -> None:
        if self.is_busy:
            self._waiting.append((job, size_bytes))
            self.size_bytes += size_bytes
        else:
            job()

    def wait(self, rule: Rule, job: Job) -> None:
        """Called by a job: `job` runs when the rule lets it, and later jobs run after it."""
        self.is_busy = True
        rule.wait(partial(self._go_on, job))

    def _go_on(self, job: Job) -> None:
        self.is_busy = False
        job()
        while self._waiting and not self.is_busy:
            following, size_bytes = self._waiting.popleft()
            self.size_bytes -= size_bytes
            following()


class Lanes(Generic[T]):
    """The lanes of producers or consumers that need one."""

    def __init__(self) -> None:
        self._lanes: dict[T, Lane] = {}

    def __contains__(self, owner: T) -> bool:
        return owner in self._lanes

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def of(self, owner: T) -> Lane:
        return self._lanes.setdefault(owner, Lane())

    def tidy(self, owner: T) -> None:
        """Forgets the owner's lane unless a job waits there."""
        lane = self._lanes.get(owner)
        if lane is not None and not lane.is_busy:
            del self._lanes[owner]
