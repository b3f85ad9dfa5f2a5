"""Draws the faults of a seed, and describes them for reports."""

import random
from collections.abc import Sequence
from typing import Final

from pybroker.simulation.faults import Fault

ACTIVE_S: Final = 5.0  # faults happen within this time
MOST_FAULTS: Final = 5
_HOUR_S: Final = 3600.0
_JUMPS_S: Final = (1.5, 30.0, _HOUR_S, 24 * _HOUR_S)
_BROKER_JUMPS_S: Final = (1.5, 30.0)  # more would outlast the retention of outcomes
# Crashes reveal most errors of pipelines.
_WEIGHTS: Final = {"crash": 6, "broker crash": 3}


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
    if kind == "clock" and rng.random() < 0.3:
        process, jumps = "", _BROKER_JUMPS_S
    return Fault(
        at_s=rng.choice((0.0, rng.random() * ACTIVE_S, rng.random() ** 3 * ACTIVE_S)),
        kind=kind,
        power_cut=rng.random() < 0.5,
        silent=rng.random() < 0.15,
        disk_operation=rng.choice((0, rng.randint(1, 8), rng.randint(1, 80))),
        down_s=rng.choice((0.0, 0.1, 2.0)),
        process=process,
        turn=rng.choice((rng.randint(1, 20), rng.randint(1, 100), rng.randint(1, 600))),
        jump_s=rng.choice((-1, 1)) * rng.choice(jumps),
    )


def described(fault: Fault) -> str:
    """The fault in one line, before it happens."""
    at = f"{fault.at_s:.3f} s into the work"
    if fault.kind == "crash":
        how = ", with its machine" if fault.silent else ""
        return f"{fault.process} crashes{how}, {fault.turn} turns of its loop after {at}"
    if fault.kind == "broker crash":
        how = ", and the power is cut" if fault.power_cut else ""
        operation = f"at disk operation {fault.disk_operation} after " * bool(fault.disk_operation)
        return f"the broker crashes{how}, {operation}{at}"
    if fault.kind == "clock":
        return f"the clock of {fault.process or 'the broker'} is set by {fault.jump_s:+g} s, {at}"
    if fault.kind in ("reset", "silence"):
        what = {"reset": "is reset", "silence": "goes silent"}[fault.kind]
        return f"a connection of {fault.process} {what}, {at}"
    return f"{_OTHERS[fault.kind]}, {at}"


_OTHERS: Final = {
    "broker stop": "the broker is restarted gracefully",
    "stall": "the network stalls",
    "disk full": "the broker's disk is full",
    "disk fails": "a sync of the broker's disk fails",
    "slow disk": "the broker's disk becomes slow",
}
