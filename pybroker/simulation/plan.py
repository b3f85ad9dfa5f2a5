"""Draws the faults of a seed, and describes them for reports."""

import math
import random
from collections.abc import Sequence
from typing import Final

from pybroker.simulation.faults import Fault

ACTIVE_S: Final = 5.0  # faults happen within this time
MOST_FAULTS: Final = 5
_HOUR_S: Final = 3600.0
_JUMPS_S: Final = (1.5, 30.0, _HOUR_S, 24 * _HOUR_S)
_BROKER_JUMPS_S: Final = (1.5, 30.0)  # more would outlast the retention of outcomes
_DOWN_S: Final = (0.0, 0.1, 2.0)
_LONGEST_DOWN_S: Final = (2.0, 64.0)  # shorter and longer than clients wait for an answer
# Crashes reveal most errors of pipelines.
_WEIGHTS: Final = {"crash": 8, "broker crash": 4, "silence": 2}
# Most errors need a fault in the middle of a command, which is seldom met by chance.
_BY_STEP: Final = (
    "crash",
    "pause",
    "broker crash",
    "broker stop",
    "reset",
    "silence",
    "stall",
    "disk fails",
)


def draw(rng: random.Random, processes: Sequence[str], kinds: Sequence[str]) -> tuple[Fault, ...]:
    """Up to `MOST_FAULTS` faults, in order of time; sometimes none."""
    if not kinds:
        return ()
    count = rng.choice((0, 1, 1, 1, 2, 2, 3, 4, MOST_FAULTS))
    faults = [_draw_one(rng, processes, kinds) for _ in range(count)]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _draw_one(rng: random.Random, processes: Sequence[str], kinds: Sequence[str]) -> Fault:
    (kind,) = rng.choices(kinds, [_WEIGHTS.get(each, 1) for each in kinds])
    process = rng.choice(processes)
    jumps: Sequence[float] = _JUMPS_S
    by_step = kind in _BY_STEP and rng.random() < 0.65
    if kind == "clock" and rng.random() < 0.3:
        process, jumps = "", _BROKER_JUMPS_S
    turns = rng.randint(1, rng.choice((2, 10) if by_step else (20, 100, 600)))
    at_end = by_step and rng.random() < 0.5
    at_s = rng.choice((0.0, rng.random() * ACTIVE_S, rng.random() ** 3 * ACTIVE_S))
    return Fault(
        at_s=0.0 if by_step and rng.random() < 0.75 else at_s,
        kind=kind,
        power_cut=rng.random() < 0.5,
        silent=rng.random() < 0.15,
        disk_operation=rng.choice((0, rng.randint(1, 8), rng.randint(1, 8 if by_step else 80))),
        down_s=rng.choice(_DOWN_S) if rng.random() < 0.6 else _outage_s(rng),
        process=process,
        turn=turns,
        jump_s=rng.choice((-1, 1)) * rng.choice(jumps),
        step=rng.randint(1, rng.choice((8, 40))) if by_step else 0,
        at_end=at_end,
        lag=rng.choice((0.0, rng.random())) if by_step else 0.0,
        until_error=at_end and kind == "broker crash" and rng.random() < 0.5,
    )


def _outage_s(rng: random.Random) -> float:
    """Any order of magnitude is as likely."""
    least, most = map(math.log, _LONGEST_DOWN_S)
    return round(math.exp(rng.uniform(least, most)), 1)


def described(fault: Fault) -> str:
    """The fault in one line, before it happens."""
    at = f"{fault.at_s:.3f} s into the work"
    if fault.step:
        end = ", or the next end of a transaction," * fault.at_end
        at = f"step {fault.step} of {fault.process}{end or ','} counted from {at}"
    if fault.kind == "crash":
        how = ", with its machine" if fault.silent else ""
        turns = f"{fault.turn} turn{'s' * (fault.turn != 1)} of its loop"
        return f"{fault.process} crashes{how}, {turns} after {at}"
    if fault.kind == "broker crash":
        how = ", and the power is cut" if fault.power_cut else ""
        operation = f"at disk operation {fault.disk_operation} after " * bool(fault.disk_operation)
        until = ", until a command has failed" * fault.until_error
        return f"the broker crashes{how}, {operation or _after(fault)}{at}{until}"
    if fault.kind == "clock":
        return f"the clock of {fault.process or 'the broker'} is set by {fault.jump_s:+g} s, {at}"
    if fault.kind == "pause":
        return f"{fault.process} is paused for {paused_s(fault):g} s, {_after(fault)}{at}"
    if fault.kind in ("reset", "silence"):
        what = {"reset": "is reset", "silence": "goes silent"}[fault.kind]
        return f"a connection of {fault.process} {what}, {_after(fault)}{at}"
    return f"{_OTHERS[fault.kind]}, {_after(fault)}{at}"


def paused_s(fault: Fault) -> float:
    return 2.0 + 2 * fault.down_s


def _after(fault: Fault) -> str:
    return "shortly after " * bool(fault.step)


_OTHERS: Final = {
    "broker stop": "the broker is restarted gracefully",
    "stall": "the network stalls",
    "disk full": "the broker's disk is full",
    "disk fails": "a sync of the broker's disk fails",
    "slow disk": "the broker's disk becomes slow",
}
