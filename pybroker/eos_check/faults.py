"""The faults of a run: the process that crashes, at a step of the protocol, before or after it.

A step is a kind of command by which a client changes state, with its topic. The n-th command of the
kind is counted from the run's start or, for a second fault, from the first.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Victim(Enum):
    PIPELINE = "pipeline"  # SIGKILL of all its processes
    BROKER = "broker"  # SIGKILL, then a new start with the same ports and directory


class Phase(Enum):
    BEFORE = "before"  # the command does not reach the broker
    AFTER = "after"  # the broker has executed it; its answer does not reach the pipeline


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """A kind of command, such as SEND to one topic. `topic` is empty if commands have none."""

    command: str
    topic: str = ""

    def __str__(self) -> str:
        return f"{self.command} {self.topic}".rstrip()


@dataclass(frozen=True, slots=True)
class Passing:
    """One side of a step, which a run passes."""

    step: Step
    phase: Phase


@dataclass(frozen=True, slots=True)
class Kind:
    """A crash of `victim` at one side of a step, at any of its passings."""

    victim: Victim
    passing: Passing

    def __str__(self) -> str:
        return f"{self.victim.value} killed {self.passing.phase.value} {self.passing.step}"


@dataclass(frozen=True, slots=True)
class Fault:
    """A crash of `victim` at the `number`-th passing, counted from 1."""

    victim: Victim
    passing: Passing
    number: int

    @property
    def kind(self) -> Kind:
        return Kind(self.victim, self.passing)

    def __str__(self) -> str:
        if self.passing.step.command.islower():  # a step within the broker
            step = f"{self.passing.step} #{self.number}"
            return f"{self.victim.value} killed {self.passing.phase.value} {step}"
        where = {
            Phase.BEFORE: "before {} #{} reaches the broker",
            Phase.AFTER: "after {} #{} is done, before its answer",
        }[self.passing.phase]
        return f"{self.victim.value} killed {where.format(self.passing.step, self.number)}"


Schedule = tuple[Fault, ...]
NO_FAULT: Final[Schedule] = ()
