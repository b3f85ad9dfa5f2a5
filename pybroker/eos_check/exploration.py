"""Executes the plan: runs without faults, with one fault, with two; then shrinks a failing run.

First comes one crash of each kind. If the pipeline starts so slowly that the time does not suffice
for a run of each, several crashes follow each other within a run. Then come pairs, then the
remaining crashes of these kinds.

Runs are independent, so some execute concurrently. The exploration ends with the first run that
breaks a promise, when all were tried, or when no further run would end within the time limit. The
default time limit is extended until each kind of crash was tried; the user's is not.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from pybroker.base.names import TopicName
from pybroker.client import PulsarException
from pybroker.eos_check.clean_run import clean_run
from pybroker.eos_check.faults import Fault, Kind, Passing, Schedule, Step, Victim
from pybroker.eos_check.judgement import Breach, Promise, disorder, judge, judge_by_command, same
from pybroker.eos_check.plan import Plan, interleaved, pairs, singles, spread
from pybroker.eos_check.run import run
from pybroker.eos_check.run_result import CannotRun, Clean, RunResult
from pybroker.eos_check.series import CrashesOfRun, Series, suspects
from pybroker.eos_check.settings import WAVES, Settings
from pybroker.eos_check.topics import HalfPublished

TIME_LIMIT_S: Final = 300.0
_MAY_STILL_COME: Final = (Promise.LOST, Promise.PARTIAL)
_SHRUNK_TO: Final = (1, 3)  # messages
_IN_A_SERIES_AT_LEAST: Final = 3  # messages
_SHOWN_EVERY_S: Final = 2.0  # how often the crashes of running runs are shown
# The duration of a run with a crash: this multiple of a run without, up to its last request (the
# pipeline's start dominates), and some time for the broker's start and for the final check.
_TIMES_CLEAN: Final = {Victim.PIPELINE: 2.0, Victim.BROKER: 1.25}
_AROUND_A_RUN_S: Final = 2.0
_WRITES: Final = frozenset(("SEND", "PRODUCE"))
# A Kafka client's Fetch is no step.
_READS: Final = frozenset(("SUBSCRIBE", "OFFSET_COMMIT", "TXN_OFFSET_COMMIT", "SHARE_ACKNOWLEDGE"))
Say = Callable[[str], None]
Show = Callable[[int, int, str], None]  # number done, total, and what is counted


@dataclass(slots=True)
class CounterExample:
    settings: Settings
    result: RunResult
    breaches: list[Breach]


@dataclass(slots=True)
class Explored:
    """The faults that were tried. `missed` counts runs that never reached the fault's step.

    `kinds` counts the kinds of crash at steps of both runs without faults. Each must be tried.
    """

    singles: int = 0
    singles_tried: int = 0
    pairs_tried: int = 0
    runs: int = 0
    missed: int = 0
    in_series: int = 0  # single faults that shared a run with others
    series_runs: int = 0
    kinds: int = 0
    not_tried: list[Kind] = field(default_factory=list)  # for lack of time
    not_reached: list[Kind] = field(default_factory=list)  # no run reached their step
    run_s: float = 0.0  # time per run, divided by the number of concurrent runs
    clean_s: float = 0.0  # duration of the runs without faults
    out_of_time: bool = False
    unjudged: list[str] = field(default_factory=list)  # topics that the pipeline wrote to
    disordered: int = 0  # runs that were out of order by key, unless order is a promise
    disorder: str = ""  # an example
    counter_example: CounterExample | None = None


class Exploration:
    def __init__(
        self,
        settings: Settings,
        *,
        time_limit_s: float | None,
        once_each: bool = False,
        pairs_at_most: int,
        jobs: int,
        say: Say,
        show: Show,
    ) -> None:
        self._settings = settings
        self._time_limit_s = TIME_LIMIT_S if time_limit_s is None else time_limit_s
        self._each_kind_first = time_limit_s is None
        self._once_each = once_each  # no second crash of a kind
        self._give_up_s = 0.0  # no run may end later
        self._longest_s = 0.0  # the longest run with faults
        self._pairs_at_most = pairs_at_most
        self._jobs = jobs
        self._say = say
        self._show = show
        self._stop = threading.Event()
        self._places = count()
        self._order_is_known = True
        self._acknowledged_by: frozenset[str] = frozenset()
        self._behind: dict[Fault, list[Passing]] = {}
        self.explored = Explored()

    def explore(self) -> Explored:
        """Tries the faults. Raises CannotRun if there is nothing to judge."""
        began_s = time.monotonic()
        self._give_up_s = began_s + self._time_limit_s
        try:
            clean, first, second = self._clean()
            self.explored.clean_s = time.monotonic() - began_s
            faults = singles(first.passings[0], first.inner)
            kinds = _kinds(faults, second)
            self.explored.unjudged = _unjudged(self._settings, first, second)
            self.explored.singles = len(faults)
            self.explored.kinds = len(kinds)
            failed, done = None, set[Kind]()
            if self._needs_series(clean, kinds):
                self._longest_s = clean.duration_s
                series = Series(kinds, _at_start(first, second), self._would_end_in_time_or_must)
                failed = self._try_in_series(series, clean, len(kinds))
                done = set(series.struck)
            plan = Plan(_without_first(faults, done), [kind for kind in kinds if kind not in done])
            if failed is None:
                failed = self._try(plan, clean, "kinds of crash", kinds_only=True)
            if failed is None and not self._once_each:
                failed = self._try(self._pairs(faults), clean, "pairs")
            if failed is None and not self._once_each:
                failed = self._try(plan, clean, "crashes")
            self.explored.not_tried = plan.not_tried
            self.explored.not_reached = plan.not_reached
            if failed is not None:
                self.explored.counter_example = self._shrink(failed)
            if not faults:
                raise CannotRun(
                    "no crash was tried: the pipeline sent the broker nothing that changes "
                    "anything, such as a message, an acknowledgement or an offset"
                )
            if self.explored.singles_tried == 0 and failed is None:
                raise CannotRun(
                    f"none of {self.explored.runs} runs reached the step at which it should crash: "
                    "does the pipeline take the same steps in each run?"
                )
            return self.explored
        finally:
            self._stop.set()

    def _clean(self) -> tuple[Clean, RunResult, RunResult]:
        """Runs twice without faults: differences between such runs cannot be judged."""
        self._say("the pipeline runs twice without faults")
        with ThreadPoolExecutor(2 if self._jobs > 1 else 1) as pool:
            recording = replace(self._settings, records_classes=True)
            both = [
                pool.submit(clean_run, settings, self._stop)
                for settings in (recording, self._settings)
            ]
            try:
                first, second = (each.result() for each in both)
            except BaseException:
                self._stop.set()
                raise
        clean, other = first.clean(), second.clean()
        self._acknowledged_by = clean.acknowledged_by & other.acknowledged_by
        clean = replace(
            clean,
            acknowledged_by=self._acknowledged_by,
            duration_s=max(clean.duration_s, other.duration_s),
            busy_s=other.busy_s,  # the first run may have recorded classes; later runs do not
            pause_s=max(clean.pause_s, other.pause_s),
        )
        self._say(
            f"without faults: {len(first.inputs)} in, {len(first.outputs)} out, in "
            f"{first.duration_s:.1f} s"
        )
        if self._settings.judge:
            breaches = self._judged(first, clean)
            if breaches:
                raise CannotRun(f"the judge refuses a run without faults: {breaches[0].text}")
        elif not same(first.outputs, second.outputs, self._settings.identity):
            raise CannotRun(
                "two runs without faults produced different output: name the part that identifies "
                "a message with --identity REGEX, or use your own judge with --judge"
            )
        elif disorder(second.outputs, first.outputs, self._settings.identity):
            if self._settings.ordered:
                raise CannotRun(
                    "two runs without faults produced a key's messages in different orders: "
                    "leave out --ordered"
                )
            self._order_is_known = False
        return clean, first, second

    def _pairs(self, faults: list[Fault]) -> Plan:
        plans = [pairs(fault, self._behind[fault]) for fault in faults if fault in self._behind]
        return Plan(interleaved(plans)[: self._pairs_at_most])

    # -- several crashes in a run

    def _needs_series(self, clean: Clean, kinds: Sequence[Kind]) -> bool:
        left_s = self._give_up_s - time.monotonic()
        needed_s = sum(_TIMES_CLEAN[kind.victim] * clean.busy_s + _AROUND_A_RUN_S for kind in kinds)
        return needed_s / self._jobs > left_s and self._settings.messages >= _IN_A_SERIES_AT_LEAST

    def _would_end_in_time_or_must(self) -> bool:
        return self._each_kind_first or self._would_end_in_time()

    def _try_in_series(self, series: Series, clean: Clean, kinds: int) -> CounterExample | None:
        began_s = time.monotonic()
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                under_way = self._submit_series(pool, series, clean, self._jobs)
                while under_way:
                    ended, _ = wait(under_way, _SHOWN_EVERY_S, FIRST_COMPLETED)
                    self._show(series.struck_with(under_way.values()), kinds, "kinds of crash")
                    for each in ended:
                        crashes = under_way.pop(each)
                        result = _of(each)
                        series.end(crashes, judged=result is not None)
                        self.explored.runs += 1
                        self.explored.series_runs += 1
                        self.explored.missed += len(crashes.missed)
                        self.explored.singles_tried = self.explored.in_series = len(series.struck)
                        took_s = time.monotonic() - began_s
                        self.explored.run_s = took_s / max(1, len(series.struck))
                        breaches = self._judged(result, clean) if result is not None else []
                        if result is not None and breaches:
                            return CounterExample(self._settings, result, breaches)
                    under_way |= self._submit_series(pool, series, clean, len(ended))
            finally:
                self._stop.set()
                pool.shutdown()
                self._stop.clear()
        return None

    def _submit_series(
        self, pool: ThreadPoolExecutor, series: Series, clean: Clean, count: int
    ) -> dict[Future[RunResult], CrashesOfRun]:
        submitted: dict[Future[RunResult], CrashesOfRun] = {}
        while len(submitted) < count and series.has_more:
            crashes = series.begin()
            under_way = pool.submit(run, self._settings, (), clean, self._stop, crashes)
            submitted[under_way] = crashes
        return submitted

    # -- a run for each crash, or for each pair

    def _try(
        self, plan: Plan, clean: Clean, what: str, *, kinds_only: bool = False
    ) -> CounterExample | None:
        """Returns the earliest run of the plan that breaks a promise, whichever of the concurrent
        runs ends first.
        """
        done, of = 0, len(plan.not_tried) if kinds_only else plan.left
        began_s = time.monotonic()
        failed: dict[int, CounterExample] = {}  # by place in the plan
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                under_way = self._submit(pool, plan, clean, self._jobs, kinds_only)
                while under_way:
                    ended, _ = wait(under_way, return_when=FIRST_COMPLETED)
                    for each in ended:
                        done += 1
                        self._show(min(done, of), of, what)
                        place, schedule = under_way.pop(each)
                        result = _of(each)
                        plan.has_run(schedule, struck=self._count(schedule, result))
                        self.explored.run_s = (time.monotonic() - began_s) / done
                        if result is not None:
                            self._longest_s = max(self._longest_s, result.duration_s)
                        breaches = self._judged(result, clean) if result is not None else []
                        if result is not None and breaches:
                            failed[place] = CounterExample(self._settings, result, breaches)
                    if not failed:
                        under_way |= self._submit(pool, plan, clean, len(ended), kinds_only)
                    elif all(place > min(failed) for place, _ in under_way.values()):
                        return failed[min(failed)]
            finally:
                self._stop.set()
                pool.shutdown()
                self._stop.clear()
        return None

    def _submit(
        self,
        pool: ThreadPoolExecutor,
        plan: Plan,
        clean: Clean,
        at_most: int,
        kinds_only: bool,
    ) -> dict[Future[RunResult], tuple[int, Schedule]]:
        """Starts up to `at_most` runs. Each has its place in the order of all runs."""
        submitted: dict[Future[RunResult], tuple[int, Schedule]] = {}
        while len(submitted) < at_most:
            is_late = self.explored.runs > 0 and not self._would_end_in_time()
            if is_late and not plan.is_finished and not self._once_each:
                self.explored.out_of_time = True
            if is_late and not self._each_kind_first:
                break
            schedule = plan.take(new_kinds_only=is_late or kinds_only)
            if schedule is None:
                break
            future = pool.submit(run, self._settings, schedule, clean, self._stop)
            submitted[future] = next(self._places), schedule
        return submitted

    def _would_end_in_time(self) -> bool:
        """Whether a run that starts now would end in time."""
        return time.monotonic() + self._longest_s <= self._give_up_s

    def _count(self, schedule: Schedule, result: RunResult | None) -> bool:
        """Counts the run. Returns whether its faults happened."""
        self.explored.runs += 1
        if result is None or result.struck < len(schedule):
            self.explored.missed += 1
            return False
        if len(schedule) == 1:
            self.explored.singles_tried += 1
            self._behind[schedule[0]] = result.passings[1]
        else:
            self.explored.pairs_tried += 1
        return True

    def _judged(self, result: RunResult, clean: Clean) -> list[Breach]:
        if self._settings.judge:
            inputs = [each for each, _ in result.inputs]
            breaches = judge_by_command(self._settings.judge, result.outputs, inputs)
        else:
            breaches = judge(result.outputs, clean.outputs, self._settings.identity)
            if self._order_is_known:
                breaches += self._disordered(result, clean)
        if result.stuck:
            # Missing output may still come. It is only known that it takes this long.
            breaches = [each for each in breaches if each.promise not in _MAY_STILL_COME]
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

    # -- shrinking

    def _shrink(self, failed: CounterExample) -> CounterExample:
        """Reduces the number of messages while the same kind of fault still breaks a promise.

        For a series, it tries single crashes that may break the promise. This extends the time
        limit, unless the user has set it.
        """
        self._say(f"{failed.breaches[0]}: looking for a smaller example")
        schedules: Sequence[Schedule] = [failed.result.schedule]
        if failed.result.was_series:
            schedules = suspects(failed.result, failed.breaches)
            if self._each_kind_first:
                self._give_up_s = max(self._give_up_s, time.monotonic() + TIME_LIMIT_S)
        for schedule in schedules:
            for messages in _SHRUNK_TO:
                if messages >= self._settings.messages or not self._would_end_in_time():
                    break
                smaller = self._with_messages(failed, schedule, messages)
                if smaller is not None:
                    return smaller
        return failed

    def _with_messages(
        self, failed: CounterExample, schedule: Schedule, messages: int
    ) -> CounterExample | None:
        settings = replace(self._settings, messages=messages)
        promises = {breach.promise for breach in failed.breaches}
        try:
            first = clean_run(settings, self._stop)
            clean = replace(first.clean(), acknowledged_by=self._acknowledged_by)
            for lower in _lowered(schedule, first):
                if time.monotonic() > self._give_up_s:
                    return None
                result = run(settings, lower, clean, self._stop)
                breaches = self._judged(result, clean)
                if promises & {breach.promise for breach in breaches}:
                    return CounterExample(settings, result, breaches)
        except (CannotRun, HalfPublished, PulsarException, OSError):
            return None  # no output with so few messages: keep the larger example
        return None


def _kinds(faults: Iterable[Fault], second: RunResult) -> list[Kind]:
    """The kinds of those faults whose steps the second run passed too: a third run should."""
    passed = {*second.passings[0], *second.inner}
    return list(dict.fromkeys(fault.kind for fault in faults if fault.passing in passed))


def _unjudged(settings: Settings, *clean: RunResult) -> list[str]:
    """Topics that the pipeline writes to, does not read, and nobody judges."""
    steps = {passing.step for each in clean for passing in each.passings[0]}
    judged = {*settings.outputs, settings.input}
    known = {_short(topic) for topic in judged}
    return sorted(_topics_of(steps, _WRITES) - _topics_of(steps, _READS) - known)


def _topics_of(steps: Iterable[Step], commands: frozenset[str]) -> set[str]:
    """The topics of these commands. A request of a Kafka client may have several."""
    named = (step.topic.split(", ") for step in steps if step.command in commands)
    return {_short(topic) for topics in named for topic in topics if topic}


def _short(topic: str) -> str:
    """Without what belongs to a partition, and to the default namespace."""
    whole = TopicName.parse(topic).partitioned_name
    return str(whole).removeprefix("persistent://public/default/")


def _at_start(*clean: RunResult) -> frozenset[Passing]:
    """Steps that, in at least one of the runs, do not occur for each part of the input."""
    found = set[Passing]()
    for each in clean:
        passings = each.passings[0]
        again = set(passings[each.before_last_input :])
        counts = Counter(passings)
        found |= {one for one, count in counts.items() if count < WAVES or one not in again}
    return frozenset(found)


def _without_first(faults: Iterable[Fault], done: set[Kind]) -> list[Schedule]:
    """The faults, without one fault of each kind in `done`."""
    left = set(done)
    schedules: list[Schedule] = []
    for fault in faults:
        if fault.kind in left:
            left.remove(fault.kind)
        else:
            schedules.append((fault,))
    return schedules


def _of(ended: Future[RunResult]) -> RunResult | None:
    """The result; None if the broker crashed while input was published, because its input is
    unknown.
    """
    try:
        return ended.result()
    except HalfPublished:
        return None


def _lowered(schedule: Schedule, clean: RunResult) -> Iterator[Schedule]:
    """The schedule, with its first fault at each number that a run with so few messages reaches."""
    passing = schedule[0].passing
    count = sum(each == passing for each in clean.passings[0]) or clean.inner.get(passing, 0)
    for number in spread(min(count, schedule[0].number)):
        yield (replace(schedule[0], number=number), *schedule[1:])
