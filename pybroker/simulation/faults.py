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
    process: str = ""  # the process of a crash, a pause, a clock, a connection or a step
    turn: int = 0  # of a crash: the turn of the process's event loop before which it happens
    jump_s: float = 0.0  # change of a clock
    # At the n-th step of `process` from `at_s` on (a command to the broker, or a message that it
    # receives); 0: at `at_s` itself.
    step: int = 0
    at_end: bool = False  # rather at the next commit or abort, if the process has transactions
    lag: float = 0.0  # after that step, as a part of the time that a command usually takes
    until_error: bool = False  # the broker is down until a command of a process has failed
