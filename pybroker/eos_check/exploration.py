"""Runs the plan: first without faults, then with one each, then with two, and shrinks what failed.

Runs are independent of each other, so some go side by side. The exploration ends with the first
run that broke a promise, when everything was tried, or when the time is over.
"""

import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Final

from pybroker.client import PulsarException
from pybroker.eos_check.faults import Fault, Passing, Schedule
from pybroker.eos_check.judgement import Breach, Promise, disorder, judge, judge_by_command, same
from pybroker.eos_check.plan import interleaved, pairs, singles, spread
from pybroker.eos_check.run import CannotRun, Clean, RunResult, Stopped, clean_run, run
from pybroker.eos_check.settings import Settings
from pybroker.eos_check.topics import HalfPublished

_SHRUNK_TO: Final = (1, 3)  # messages
Say = Callable[[str], None]
Show = Callable[[int, int, str], None]  # done, of, what


@dataclass(slots=True)
class CounterExample:
    settings: Settings
    result: RunResult
    breaches: list[Breach]


@dataclass(slots=True)
class Explored:
    """What was tried. `missed`: the run never came to the fault's step."""

    singles: int = 0
    singles_tried: int = 0
    pairs_tried: int = 0
    runs: int = 0
    missed: int = 0
    steps: int = 0
    out_of_time: bool = False
    disordered: int = 0  # runs that were out of order by key, where this is no promise
    disorder: str = ""  # in one of them
    counter_example: CounterExample | None = None


class Exploration:
    def __init__(
        self,
        settings: Settings,
        *,
        time_limit_s: float,
        pairs_at_most: int,
        jobs: int,
        say: Say,
        show: Show,
    ) -> None:
        self._settings = settings
        self._time_limit_s = time_limit_s
        self._give_up_s = 0.0  # known when the runs without faults are over
        self._pairs_at_most = pairs_at_most
        self._jobs = jobs
        self._say = say
        self._show = show
        self._stop = threading.Event()
        self._order_is_known = True
        self._acknowledged_by: frozenset[str] = frozenset()
        self._behind: dict[Fault, list[Passing]] = {}
        self.explored = Explored()

    def explore(self) -> Explored:
        """Raises CannotRun if there is nothing to judge."""
        try:
            clean, first = self._clean()
            self._give_up_s = time.monotonic() + self._time_limit_s
            plan = singles(first.passings[0], first.inner)
            self.explored.singles = len(plan)
            self.explored.steps = len({each.passing.step for each in plan})
            failed = self._try([(fault,) for fault in plan], clean)
            if failed is None:
                failed = self._try(self._pairs(plan), clean)
            if failed is not None:
                self.explored.counter_example = self._shrink(failed)
            if not plan:
                raise CannotRun("no crash was tried: the pipeline never spoke to the broker")
            if self.explored.singles_tried == 0 and failed is None:
                raise CannotRun(
                    f"none of {self.explored.runs} runs came to the step at which it was to crash: "
                    "does the pipeline do the same each time?"
                )
            return self.explored
        finally:
            self._stop.set()

    def _clean(self) -> tuple[Clean, RunResult]:
        """Two runs without faults: what differs between them cannot be judged."""
        with ThreadPoolExecutor(2 if self._jobs > 1 else 1) as pool:
            both = [pool.submit(clean_run, self._settings, self._stop) for _ in range(2)]
            try:
                first, second = (each.result() for each in both)
            except BaseException:
                self._stop.set()
                raise
        clean = first.clean()
        self._acknowledged_by = clean.acknowledged_by & second.clean().acknowledged_by
        clean = replace(clean, acknowledged_by=self._acknowledged_by)
        self._say(
            f"without faults: {len(first.outputs)} messages out for {len(first.inputs)} in, "
            f"in {first.duration_s:.1f} s"
        )
        if self._settings.judge:
            breaches = self._judged(first, clean)
            if breaches:
                raise CannotRun(f"the judge refuses a run without faults: {breaches[0].text}")
        elif not same(first.outputs, second.outputs, self._settings.identity):
            raise CannotRun(
                "two runs without faults put out different messages: name what identifies one "
                "with --identity REGEX, or judge by a command of your own with --judge"
            )
        elif disorder(second.outputs, first.outputs, self._settings.identity):
            if self._settings.ordered:
                raise CannotRun(
                    "two runs without faults put out a key's messages in different orders: leave "
                    "out --ordered"
                )
            self._order_is_known = False
        return clean, first

    def _pairs(self, plan: Sequence[Fault]) -> list[Schedule]:
        plans = [pairs(fault, self._behind[fault]) for fault in plan if fault in self._behind]
        return interleaved(plans)[: self._pairs_at_most]

    def _try(self, plan: Sequence[Schedule], clean: Clean) -> CounterExample | None:
        """The first that breaks a promise; the others that are under way are waited for."""
        left = iter(plan)
        done = 0
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                under_way = self._submit(pool, left, clean, self._jobs)
                while under_way:
                    ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                    for each in ended:
                        done += 1
                        self._show(done, len(plan), "crashes")
                        try:
                            result = each.result()
                        except HalfPublished:
                            self.explored.runs += 1
                            self.explored.missed += 1
                            continue
                        self._count(result)
                        breaches = self._judged(result, clean)
                        if breaches:
                            return CounterExample(self._settings, result, breaches)
                    under_way |= self._submit(pool, left, clean, len(ended))
            finally:
                self._stop.set()
                pool.shutdown()
                self._stop.clear()
        return None

    def _submit(
        self, pool: ThreadPoolExecutor, left: Iterator[Schedule], clean: Clean, count: int
    ) -> set[Future[RunResult]]:
        submitted: set[Future[RunResult]] = set()
        while len(submitted) < count:
            if self.explored.runs and time.monotonic() > self._give_up_s:
                if next(left, None) is not None:
                    self.explored.out_of_time = True
                break
            schedule = next(left, None)
            if schedule is None:
                break
            submitted.add(pool.submit(run, self._settings, schedule, clean, self._stop))
        return submitted

    def _count(self, result: RunResult) -> None:
        self.explored.runs += 1
        if result.struck < len(result.schedule):
            self.explored.missed += 1
            return
        if len(result.schedule) == 1:
            self.explored.singles_tried += 1
            self._behind[result.schedule[0]] = result.passings[1]
        else:
            self.explored.pairs_tried += 1

    def _judged(self, result: RunResult, clean: Clean) -> list[Breach]:
        if self._settings.judge:
            command = shlex.split(self._settings.judge)
            inputs = [each for each, _ in result.inputs]
            breaches = judge_by_command(command, result.outputs, inputs)
        else:
            breaches = judge(result.outputs, clean.outputs, self._settings.identity)
            if self._order_is_known:
                breaches += self._disordered(result, clean)
        if result.stuck:
            behind = ", ".join(f"{name}: {count}" for name, count in result.backlogs.items())
            text = f"{result.stuck}; not acknowledged by {behind or 'any subscription'}"
            breaches.append(Breach(Promise.STUCK, text))
        return breaches

    def _disordered(self, result: RunResult, clean: Clean) -> list[Breach]:
        found = disorder(result.outputs, clean.outputs, self._settings.identity)
        if self._settings.ordered or not found:
            return found
        self.explored.disordered += 1
        faults = ", then ".join(map(str, result.schedule))
        self.explored.disorder = f"{faults}: {found[0].text}"
        return []

    # -- the smallest

    def _shrink(self, failed: CounterExample) -> CounterExample:
        """With fewer messages, if the same kind of fault breaks a promise there, too."""
        self._say(f"{failed.breaches[0]}: looking for a smaller example")
        for messages in _SHRUNK_TO:
            if messages >= self._settings.messages:
                break
            smaller = self._with_messages(failed, messages)
            if smaller is not None:
                return smaller
        return failed

    def _with_messages(self, failed: CounterExample, messages: int) -> CounterExample | None:
        settings = replace(self._settings, messages=messages)
        promises = {breach.promise for breach in failed.breaches}
        try:
            first = clean_run(settings, self._stop)
            clean = replace(first.clean(), acknowledged_by=self._acknowledged_by)
            for schedule in _lowered(failed.result.schedule, first):
                if time.monotonic() > self._give_up_s:
                    return None
                result = run(settings, schedule, clean, self._stop)
                breaches = self._judged(result, clean)
                if promises & {breach.promise for breach in breaches}:
                    return CounterExample(settings, result, breaches)
        except (CannotRun, HalfPublished, PulsarException, OSError):
            return None  # so few are not put out; the larger example stands
        return None


def _lowered(schedule: Schedule, clean: RunResult) -> Iterator[Schedule]:
    """The schedule with its first fault at each number that so few messages reach."""
    passing = schedule[0].passing
    count = sum(each == passing for each in clean.passings[0]) or clean.inner.get(passing, 0)
    for number in spread(min(count, schedule[0].number)):
        yield (replace(schedule[0], number=number), *schedule[1:])


__all__ = ["CannotRun", "Exploration", "Explored", "Stopped"]
