"""A rule: when something goes wrong at a point, and what.

Any thread may make and query rules. They strike on the broker's loop.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, Self

from pybroker.base.errors import PulsarError
from pybroker.faults.passing import Passing, matches
from pybroker.faults.points import Action

DEFAULT_WAIT_S: Final = 30.0
DEFAULT_HOLD_S: Final = 60.0
LONGEST_S: Final = 600.0

GoOn = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rule does, with checked fields."""

    point: str
    action: Action
    predicates: Mapping[str, str] = field(default_factory=dict)
    every: int = 1  # strikes at every n-th matching passing
    after: int = 0  # lets this number of matching passings through first
    times: int | None = None  # the greatest number of strikes; None: no limit
    seconds: float = 0.0  # length of a DELAY, limit of a HOLD
    error: type[PulsarError] = PulsarError  # of FAIL
    message: str = ""
    strict: bool = False  # a test fails if it never strikes


class NeverStruck(AssertionError):
    """A strict rule has not struck once, so the test has not tested what it wanted to."""


class Owner(Protocol):
    """The owner of rules: `Faults`."""

    def loop(self) -> asyncio.AbstractEventLoop | None: ...
    def crash(self, struck: Callable[[], None]) -> None:
        """Begins to end the broker as a kill does; calls `struck` when the broker is down."""
        ...

    def removed(self, rule: "Rule") -> None: ...


class Lost(PulsarError):
    """A command, or its answer, is lost: do not answer."""


class _RealTime:
    """A time limit that a virtual clock neither waits for nor moves: the clock may advance by hours
    while a step is held.
    """

    in_real_time = True

    def __init__(self, seconds: float, over: GoOn) -> None:
        self._until_s = time.monotonic() + seconds
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self.look)

    def look(self) -> None:
        left_s = self._until_s - time.monotonic()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self.look)
        else:
            self._over()

    def cancel(self) -> None:
        self._timer.cancel()


class _Held:
    """A step that waits until it is released or its limit is over."""

    def __init__(self, rule: "Rule", go_on: GoOn, seconds: float) -> None:
        self._go_on = go_on
        self._limit = _RealTime(seconds, partial(rule.give_up, self))

    def go_on(self) -> None:
        self._limit.cancel()
        self._go_on()


class Rule:
    """Created by `Faults.inject`. As a context manager, the rule is removed at the end of the
    block.
    """

    def __init__(self, number: int, plan: Plan, owner: Owner) -> None:
        self.number = number
        self.plan = plan
        self.hits = 0  # number of strikes
        self.matched = 0  # number of passings that matched the predicates
        self.is_removed = False
        self._begun = 0  # number of begun strikes; a crash is a hit only when the broker is down
        self.when_down: GoOn | None = None  # called after a crash, on a separate thread
        self._owner = owner
        self._held: dict[_Held, None] = {}
        self._changed = threading.Condition()
        self._on_hit: set[GoOn] = set()  # called on the loop

    def __repr__(self) -> str:
        return f"<Rule {self.number}: {self.plan.action} at {self.plan.point}, {self.hits} hits>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.remove()
        if kind is None:
            self.check()

    @property
    def point(self) -> str:
        return self.plan.point

    @property
    def action(self) -> Action:
        return self.plan.action

    @property
    def holding(self) -> int:
        """The number of steps that wait at this rule."""
        return len(self._held)

    @property
    def is_spent(self) -> bool:
        """Whether the rule will not strike any more."""
        return self.is_removed or (self.plan.times is not None and self._begun >= self.plan.times)

    # -- from any thread

    def check(self) -> None:
        """Raises NeverStruck if the rule is strict and has not struck."""
        if self.plan.strict and not self.hits:
            raise NeverStruck(
                f"{self._about()} never struck; {self.matched} passings matched. Does the test get "
                "to this point, with these names? `faults.observe` shows what passes"
            )

    def wait_for_hit(self, timeout_s: float = DEFAULT_WAIT_S, hits: int = 1) -> None:
        """Returns when the rule has struck `hits` times in total; for a crash, when the broker is
        down.

        Raises TimeoutError; RuntimeError on the broker's own loop, which would wait for itself.
        """
        if _is_running(self._owner.loop()):
            raise RuntimeError("The broker's loop cannot wait for itself: await until_hit instead")
        with self._changed:
            if not self._changed.wait_for(lambda: self.hits >= hits, timeout_s):
                raise TimeoutError(self._too_few(hits, timeout_s))

    async def until_hit(self, timeout_s: float = DEFAULT_WAIT_S, hits: int = 1) -> bool:
        """`wait_for_hit` for the broker's loop. Returns whether the rule struck `hits` times."""
        limit_over = False
        changed = asyncio.Event()

        def over() -> None:
            nonlocal limit_over
            limit_over = True
            changed.set()

        limit = _RealTime(timeout_s, over)
        self._on_hit.add(changed.set)
        try:
            while self.hits < hits and not (limit_over or self.is_removed):
                changed.clear()
                await changed.wait()
        finally:
            limit.cancel()
            self._on_hit.discard(changed.set)
        return self.hits >= hits

    def release(self) -> None:
        """Lets all waiting steps continue; later steps are held again. Only for HOLD."""
        loop = self._owner.loop()
        if _is_running(loop):
            self._release()
        elif loop is not None:
            with suppress(RuntimeError):  # the loop has just closed, and the held steps with it
                loop.call_soon_threadsafe(self._release)

    def forget_held(self) -> None:
        """The broker is down, so no held step continues."""
        self._held = {}

    def remove(self) -> None:
        """Removes the rule, and lets the steps that it holds continue. Idempotent."""
        self.is_removed = True
        self._owner.removed(self)
        self.release()

    def _too_few(self, hits: int, timeout_s: float) -> str:
        return (
            f"{self._about()} struck {self.hits} of {hits} times within {timeout_s:g} s; "
            f"{self.matched} passings matched"
        )

    def _about(self) -> str:
        about = "".join(f", {name} {value}" for name, value in self.plan.predicates.items())
        return f"{self.plan.action} at {self.plan.point}{about}"

    # -- on the broker's loop

    def is_due(self, passing: Passing) -> bool:
        """Counts the passing. Returns whether the rule strikes."""
        if self.is_spent or not matches(self.plan.predicates, passing):
            return False
        self.matched += 1
        past = self.matched - self.plan.after
        return past > 0 and past % self.plan.every == 0

    def strike(self) -> None:
        self._begun += 1
        if self.action is Action.CRASH:
            self._owner.crash(self._crashed)
            return
        self._hit()
        for each in list(self._on_hit):
            each()

    def _crashed(self) -> None:
        self._hit()
        if self.when_down is not None:
            self.when_down()

    def _hit(self) -> None:
        with self._changed:
            self.hits += 1
            self._changed.notify_all()

    def error(self) -> PulsarError:
        plan = self.plan
        return plan.error(plan.message or f"A fault was injected at {plan.point}")

    def wait(self, go_on: GoOn) -> None:
        """For CRASH, DELAY and HOLD: calls `go_on` when the step may continue, if ever."""
        if self.action is Action.DELAY:
            asyncio.get_running_loop().call_later(self.plan.seconds, go_on)
        elif self.action is Action.HOLD and self.is_removed:
            go_on()
        elif self.action is Action.HOLD:
            self._held[_Held(self, go_on, self.plan.seconds)] = None

    def give_up(self, held: _Held) -> None:
        if self._held.pop(held, held) is None:
            held.go_on()

    def _release(self) -> None:
        held, self._held = list(self._held), {}
        for each in held:
            each.go_on()
        for notify in list(self._on_hit) if self.is_removed else ():
            notify()


def _is_running(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether the loop runs in this thread."""
    return loop is not None and asyncio._get_running_loop() is loop


async def waited(rule: Rule) -> None:
    """Returns when the step may continue, if ever."""
    gone_on = asyncio.Event()
    rule.wait(gone_on.set)
    await gone_on.wait()
