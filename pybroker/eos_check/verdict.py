"""The verdict on a pipeline: on the terminal, as an HTML page, and as an exit code.

The verdict EXACTLY ONCE requires that each kind of crash was tried. A check that ended before has
found nothing, which proves little.
"""

import math
import shlex
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from pybroker.base import verdict_files
from pybroker.base.colours import BOLD, GREEN, RED, YELLOW, coloured
from pybroker.eos_check.drawing import page
from pybroker.eos_check.exploration import Explored
from pybroker.eos_check.faults import Kind
from pybroker.eos_check.run_result import RunResult
from pybroker.eos_check.settings import Settings
from pybroker.eos_check.timeline import Row, as_text, rows
from pybroker.eos_check.words import printable

TOOL: Final = "pybroker eos-check"
_BREACHES_SHOWN: Final = 5
_KINDS_SHOWN: Final = 3
_WORDS_SHOWN: Final = 12  # lines
_SPARE_TIME: Final = 1.5  # runs differ in duration
_WHOLE_S: Final = 30  # advised time limits are multiples of this


class Verdict(Enum):
    """A verdict and its exit code."""

    EXACTLY_ONCE = 0
    NOT_EXACTLY_ONCE = 1
    NOT_JUDGED = 2


_TITLES: Final = {
    Verdict.EXACTLY_ONCE: "EXACTLY ONCE",
    Verdict.NOT_EXACTLY_ONCE: "NOT EXACTLY ONCE",
    Verdict.NOT_JUDGED: "COULD NOT BE JUDGED",
}
_COLOURS: Final = {
    Verdict.EXACTLY_ONCE: GREEN,
    Verdict.NOT_EXACTLY_ONCE: RED,
    Verdict.NOT_JUDGED: YELLOW,
}


def verdict(explored: Explored) -> Verdict:
    if explored.counter_example is not None:
        return Verdict.NOT_EXACTLY_ONCE
    if explored.not_tried or explored.not_reached:
        return Verdict.NOT_JUDGED
    return Verdict.EXACTLY_ONCE


def report(
    settings: Settings,
    explored: Explored,
    file: Path | None,
    took_s: float,
    write: Callable[[verdict_files.Verdict], None] | None = None,
) -> int:
    """Prints the verdict, writes the page to `file`, and returns the exit code. `write` gets the
    verdict for programs. Raises OSError.
    """
    told: list[Row] = []
    findings: list[str] = []
    facts = _tried(explored, took_s)
    found = explored.counter_example
    if found is not None:
        told = rows(found.result, found.breaches)
        findings = [*map(str, found.breaches)]
        faults = ", then ".join(map(str, found.result.schedule))
        count = found.settings.messages
        facts.insert(0, f"with {count} {'message' if count == 1 else 'messages'}: {faults}")
        _print_example(facts[0], told, findings)
        facts += _last_words(found.result)
    for line in facts:
        print(f"  {line}")
    reached = verdict(explored)
    title = _TITLES[reached]
    if reached is Verdict.EXACTLY_ONCE and explored.singles_tried < explored.singles:
        title += f", at {explored.singles_tried} of {explored.singles} crashes"
    if reached is Verdict.EXACTLY_ONCE and explored.unjudged:
        title += f", but {', '.join(explored.unjudged)} was not judged"
    print("\n" + coloured(title, f"{BOLD};{_COLOURS[reached]}"), flush=True)
    if file is not None:
        command = f"command: {shlex.join(settings.command)}"
        is_good = reached is Verdict.EXACTLY_ONCE
        file.write_text(page(title, findings, [command, *facts], told, is_good), "utf-8")
        print(f"report: {file}")
    if write is not None:
        crashes = {"tried": explored.singles_tried, "known": explored.singles}
        kinds = {
            "known": explored.kinds,
            "notTried": [*map(str, explored.not_tried)],
            "notReached": [*map(str, explored.not_reached)],
        }
        more = {"crashes": crashes, "kindsOfCrash": kinds, "notJudged": explored.unjudged}
        text = "\n".join([*findings, *facts, "", as_text(told)])
        write(
            verdict_files.Verdict(
                TOOL, name(settings), title, reached.value, took_s, findings, text, more
            )
        )
    return reached.value


def name(settings: Settings) -> str:
    """The name of the test, for programs."""
    return shlex.join(settings.command)


def _print_example(summary: str, told: Sequence[Row], findings: Sequence[str]) -> None:
    print(f"\n{summary}\n\n{as_text(told)}\n")
    for each in findings[:_BREACHES_SHOWN]:
        print(coloured(f"  {each}", RED))
    if len(findings) > _BREACHES_SHOWN:
        print(f"  and {len(findings) - _BREACHES_SHOWN} more")


def _last_words(result: RunResult) -> list[str]:
    """What a pipeline said last that did not catch up, or that ended by itself."""
    ended = any(event.what == "PIPELINE ENDED" for event in result.events)
    lines = result.log.splitlines()[-_WORDS_SHOWN:] if result.stuck or ended else []
    return ["the pipeline's last output:", *(f"  {printable(line)}" for line in lines)] * bool(
        lines
    )


def _tried(explored: Explored, took_s: float) -> list[str]:
    left = len(explored.not_tried) + len(explored.not_reached)
    lines = [
        f"{explored.kinds - left} of {explored.kinds} kinds of crash, {explored.singles_tried} of "
        f"{explored.singles} single crashes, {explored.pairs_tried} pairs, in {took_s:.0f} s",
    ]
    if explored.in_series:
        runs = "one run" if explored.series_runs == 1 else f"{explored.series_runs} runs"
        lines.append(
            f"{explored.in_series} of them one after the other in {runs}, because there is not "
            "enough time for a run each"
        )
    if explored.disordered:
        lines.append(
            f"out of order by key in {explored.disordered} runs (--ordered makes this fail), such "
            f"as: {explored.disorder}"
        )
    if explored.unjudged:
        options = " ".join(f"--output {topic}" for topic in explored.unjudged)
        lines.append(
            f"the pipeline also writes to {', '.join(explored.unjudged)}, which nobody judges: add "
            f"{options}, unless anything may be there"
        )
    if explored.missed:
        lines.append(
            f"{explored.missed} more runs did not reach the steps at which they should crash"
        )
    if explored.counter_example is None:
        lines += _left_out(explored)
    return lines


def _left_out(explored: Explored) -> list[str]:
    """The reason why there is no verdict, or what a longer check would still try."""
    lines = []
    if explored.not_reached:
        lines.append(
            f"no later run reached these steps: {_shown(explored.not_reached)}. Does the pipeline "
            "take the same steps in each run? More --messages give it more opportunities"
        )
    if explored.not_tried:
        lines.append(
            "no crash that was tried broke a promise, but the time limit left out "
            f"{_shown(explored.not_tried)}. Choose --time-limit {_enough_s(explored)}, or leave it "
            "out: then each kind is tried"
        )
    elif explored.out_of_time:
        lines.append("the time limit ended the check; --time-limit raises it")
    return lines


def _enough_s(explored: Explored) -> int:
    """A time limit in seconds that should suffice for all kinds."""
    runs = explored.kinds + explored.missed
    seconds = explored.clean_s + explored.run_s * runs
    return math.ceil(seconds * _SPARE_TIME / _WHOLE_S) * _WHOLE_S


def _shown(kinds: Sequence[Kind]) -> str:
    more = len(kinds) - _KINDS_SHOWN
    shown = "; ".join(map(str, kinds[:_KINDS_SHOWN]))
    return f"{shown}; and {more} more" if more > 0 else shown
