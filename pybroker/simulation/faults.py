"""Faults: frozen values, drawn before the simulation starts.

A fault contains everything that determines it, so a run can be repeated without some of its faults.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """Times are virtual seconds. `at_s` is the time of the fault from the start of the work; for a
    crash at a disk operation, the time at which counting begins.
    """

    at_s: float
    kind: str
    power_cut: bool = False  # unsynced data is lost, kept or torn
    silent: bool = False  # peers are not told: they see no reset, and nothing arrives any more
    disk_operation: int = 0  # crash before the n-th operation from `at_s` on; 0: at `at_s` itself
    down_s: float = 0.1  # duration of the fault, or time until a process is restarted
    process: str = ""  # the process of a crash, a clock or a connection
    turn: int = 0  # of a crash: the turn of the process's event loop before which it happens
    jump_s: float = 0.0  # change of a clock
