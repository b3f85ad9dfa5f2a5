"""All rules of a broker, and the observers of its steps.

At each point for which `watches` is true, the broker calls `passing`. Rules and observers outlive
restarts of a broker in this process.
"""

import asyncio
import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol, Self

from pybroker.base.errors import PulsarError
from pybroker.faults.passing import Passing
from pybroker.faults.points import POINTS, TRANSACTION, Action, Point
from pybroker.faults.recorder import Recorder
from pybroker.faults.rule import DEFAULT_HOLD_S, LONGEST_S, Plan, Rule
from pybroker.wire import pulsar_api_pb2 as pb

MAX_RULES: Final = 1000
MAX_PATTERN_CHARS: Final = 2048
MAX_MESSAGE_CHARS: Final = 1000


class MovableClock(Protocol):
    """A clock that a test can advance."""

    @property
    def offset_s(self) -> float:
        """How far the clock is ahead of the system's."""
        ...

    def now_ms(self) -> int: ...
    async def advance_here(self, duration: str | float) -> None:
        """Called on the broker's loop. Returns when everything that is due by then has happened.

        Raises ValueError, TimeoutError.
        """
        ...


Observer = Callable[[Passing], None]
Crash = Callable[[Callable[[], None]], None]

log = logging.getLogger("pybroker")


class BadRule(ValueError):
    """The message names the invalid part of a rule, and says what is valid."""


class Observation:
    """Created by `Faults.observe`. As a context manager, it ends with the block."""

    def __init__(
        self,
        observer: Observer,
        points: frozenset[str] | None,
        removed: Callable[["Observation"], None],
    ) -> None:
        self.observer = observer
        self.points = points
        self._removed = removed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Ends the observation. Idempotent."""
        self._removed(self)


class Faults:
    """The fault points of one broker. Methods above "on the loop" may be called on any thread."""

    def __init__(self, clock: MovableClock | None = None) -> None:
        self.clock = clock  # None: the clock cannot be advanced
        self._recorder: Recorder | None = None
        self._lock = threading.Lock()  # held to replace the following fields; reading needs no lock
        self._rules: tuple[Rule, ...] = ()
        self._at: Mapping[str, tuple[Rule, ...]] = {}
        self._observations: tuple[Observation, ...] = ()
        self._all_observed = False
        self._observed: frozenset[str] = frozenset()
        self._numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crash: Crash | None = None
        self.has_crashed = False  # the broker is about to end; until then nothing goes in or out

    # -- rules

    @property
    def points(self) -> Mapping[str, Point]:
        """The table of all points, by name."""
        return POINTS

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules that have not been removed, including spent ones, oldest first."""
        return self._rules

    def rule(self, number: int) -> Rule | None:
        return next((each for each in self._rules if each.number == number), None)

    def inject(
        self,
        point: str,
        action: str,
        *,
        topic: object = None,
        subscription: str | None = None,
        producer: str | None = None,
        transaction: object = None,
        once: bool = False,
        every: int = 1,
        after: int = 0,
        times: int | None = None,
        seconds: float | None = None,
        error: type[PulsarError] | str | None = None,
        message: str = "",
        strict: bool = False,
    ) -> Rule:
        """Makes something go wrong at `point` from now on; `Action` and `POINTS` list the choices.

        A predicate is a name or a glob. A topic's name may be short, and the name of a partitioned
        topic stands for its partitions too. The rule lets the first `after` matching passings
        through, then strikes at every `every`-th, at most `times` (`once`: 1). A crash strikes
        once, unless `times` is greater. `seconds` is the length of a delay, or the time limit of a
        hold (60). `error` is the name of a failure, such as "ServiceNotReady". A `strict` rule that
        has not struck when its block, its fixture or its broker ends, fails the test. Raises
        BadRule.
        """
        given = {
            "topic": topic,
            "subscription": subscription,
            TRANSACTION: transaction,
            "producer": producer,
        }
        predicates = {name: str(value) for name, value in given.items() if value is not None}
        if once and times not in (None, 1):
            raise BadRule(f"once is times=1: leave out once or times={times}")
        plan = _checked(
            point, action, predicates, every, after, 1 if once else times, seconds, error, message
        )
        if strict:
            plan = replace(plan, strict=True)
        with self._lock:
            if len(self._rules) >= MAX_RULES:
                raise BadRule(f"There are {MAX_RULES} rules: remove some first (`clear`)")
            rule = Rule(next(self._numbers), plan, self)
            self._arm((*self._rules, rule))
        return rule

    def clear(self) -> None:
        """Removes all rules; steps that they hold continue."""
        for rule in self._rules:
            rule.remove()

    def clear_and_check(self) -> None:
        """Removes all rules. Raises NeverStruck if a strict one has not struck."""
        rules = self._rules
        self.clear()
        for rule in rules:
            rule.check()

    def removed(self, rule: Rule) -> None:
        with self._lock:
            self._arm(tuple(each for each in self._rules if each is not rule))

    def _arm(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._at = {
            point: tuple(each for each in rules if each.point == point)
            for point in {rule.point for rule in rules}
        }

    # -- observers

    def observe(self, observer: Observer, points: Iterable[str] | None = None) -> Observation:
        """Calls `observer` at each passing, on the broker's loop: it must be quick.

        With `points`, calls it only at these and wherever a rule strikes, which costs less.
        """
        wanted = None if points is None else frozenset(points)
        observation = Observation(observer, wanted, self._stop_observing)
        with self._lock:
            self._watch((*self._observations, observation))
        return observation

    def _stop_observing(self, ended: Observation) -> None:
        with self._lock:
            self._watch(tuple(each for each in self._observations if each is not ended))

    def _watch(self, observations: tuple[Observation, ...]) -> None:
        self._observations = observations
        self._all_observed = any(each.points is None for each in observations)
        self._observed = frozenset().union(*(each.points or () for each in observations))

    def record(self) -> Recorder:
        """The record of the passings since the first call; it keeps the latest `MAX_RECORDED`."""
        if self._recorder is None:
            now_ms = _no_time if self.clock is None else self.clock.now_ms
            self._recorder = Recorder(now_ms)
            self.observe(self._recorder.note)
        return self._recorder

    # -- on the loop

    def attach(self, crash: Crash) -> None:
        """Called when a broker starts on the running loop. `crash` ends it as a kill does."""
        self._loop = asyncio.get_running_loop()
        self._crash = crash
        self.has_crashed = False

    def detach(self) -> None:
        """Called when the broker has ended."""
        self._loop = self._crash = None
        for rule in self._rules:
            rule.forget_held()

    def loop(self) -> asyncio.AbstractEventLoop | None:
        return self._loop

    def crash(self, struck: Callable[[], None]) -> None:
        if self._crash is not None and not self.has_crashed:
            self.has_crashed = True
            self._crash(struck)

    def watches(self, point: str) -> bool:
        """Whether a rule or an observer exists at the point; otherwise `passing` need not be
        called.
        """
        return point in self._at or self._all_observed or point in self._observed

    def is_armed(self, point: str) -> bool:
        """Whether a rule exists at the point."""
        return point in self._at

    def passing(self, passing: Passing) -> Rule | None:
        """The rule that strikes here. Its hit is counted; the caller must perform its action."""
        struck: Rule | None = None
        if not passing.error:
            for rule in self._at.get(passing.point, ()):
                if rule.is_due(passing) and struck is None:
                    struck = rule
        if struck is not None:
            passing.struck = str(struck.action)
        for observation in self._observations:
            points = observation.points
            if points is not None and struck is None and passing.point not in points:
                continue
            try:
                observation.observer(passing)
            except Exception:
                log.exception("an observer of fault points failed at %s", passing.point)
        if struck is not None:
            struck.strike()
        return struck


def _no_time() -> int:
    return 0


def _checked(
    point: str,
    action: str,
    predicates: Mapping[str, str],
    every: int,
    after: int,
    times: int | None,
    seconds: float | None,
    error: type[PulsarError] | str | None,
    message: str,
) -> Plan:
    known = POINTS.get(point)
    if known is None:
        raise BadRule(f"There is no point {point[:200]!r}: `pybroker faults list` shows all")
    if action not in known.actions:
        allowed = ", ".join(known.actions)
        raise BadRule(f"{str(action)[:200]!r} makes no sense at {point}: choose one of {allowed}")
    for name, pattern in predicates.items():
        _check_predicate(known, name, pattern)
    _check_number("every", every, 1)
    _check_number("after", after, 0)
    if times is not None:
        _check_number("times", times, 1)
    chosen = Action(action)
    if chosen is not Action.FAIL and (error is not None or message):
        raise BadRule(f"Only fail has an error and a message, not {action}")
    if chosen is Action.CRASH and times is None:
        times = 1
    return Plan(
        point,
        chosen,
        predicates,
        every,
        after,
        times,
        _checked_seconds(chosen, seconds),
        _error_class(error),
        message[:MAX_MESSAGE_CHARS],
    )


def _check_predicate(point: Point, name: str, pattern: str) -> None:
    if name not in point.predicates:
        known = ", ".join(point.predicates) or "no predicate"
        raise BadRule(f"{name} is not known at {point.name}, which knows {known}")
    if not pattern or len(pattern) > MAX_PATTERN_CHARS:
        raise BadRule(f"{name} must have 1 to {MAX_PATTERN_CHARS} characters")


def _check_number(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise BadRule(f"{name} must be a whole number of at least {least}, not {value!r}")


def _checked_seconds(action: Action, seconds: float | None) -> float:
    if action not in (Action.DELAY, Action.HOLD):
        if seconds is not None:
            raise BadRule(f"Only delay and hold have seconds, not {action}")
        return 0.0
    if seconds is None:
        if action is Action.DELAY:
            raise BadRule("A delay needs its seconds")
        return DEFAULT_HOLD_S
    most = LONGEST_S if action is Action.HOLD else math.inf
    if not (isinstance(seconds, int | float) and 0 < seconds <= most and seconds < math.inf):
        limit = f" and at most {LONGEST_S:g}" if action is Action.HOLD else ""
        raise BadRule(f"The seconds of a {action} must be above 0{limit}, not {seconds!r}")
    return float(seconds)


def error_classes() -> dict[str, type[PulsarError]]:
    """The errors by the name of their ServerError on the wire."""
    by_code: dict[int, type[PulsarError]] = {0: PulsarError}
    for each in PulsarError.__subclasses__():
        by_code.setdefault(each.code, each)
    return {error_name(each): each for each in by_code.values()}


def error_name(error: type[PulsarError]) -> str:
    return pb.ServerError.Name(error.code)


def _error_class(error: type[PulsarError] | str | None) -> type[PulsarError]:
    if error is None:
        return error_classes()["ServiceNotReady"]
    if isinstance(error, str):
        found = error_classes().get(error)
        if found is None:
            known = ", ".join(sorted(error_classes()))
            raise BadRule(f"There is no error {error[:200]!r}: choose one of {known}")
        return found
    return error
