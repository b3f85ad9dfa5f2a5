"""Faults: frozen values, drawn before the simulation starts.

A fault holds everything that determines it, so a run can be repeated without some of its faults.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """Times are virtual seconds. `at_s` is when it happens, counted from the start of the work; for
    a crash at a disk operation, when the counting starts.
    """

    at_s: float
    kind: str
    power_cut: bool = False  # what was not synced is lost, kept or torn
    silent: bool = False  # peers are not told: no reset, nothing arrives any more
    disk_operation: int = 0  # crash before the n-th from then on; 0: at `at_s` itself
    down_s: float = 0.1  # how long it lasts, or until a process is started again
    process: str = ""  # whose: of crashes, clocks and connections
    turn: int = 0  # of a crash: before this turn of the process's event loop
    jump_s: float = 0.0  # by how much a clock is set
