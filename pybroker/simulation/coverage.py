"""Which faults met work: they struck after a process's first action, and before its last one."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from pybroker.simulation.faults import Fault


@dataclass(slots=True)
class Strikes:
    """When each fault of a seed struck, in virtual seconds."""

    at_s: dict[int, float] = field(default_factory=dict)  # by the fault's number, from 1

    def add(self, name: str, at_s: float) -> None:
        """`name`: as in `FAULT 3`."""
        self.at_s.setdefault(int(name.rpartition(" ")[2]), at_s)

    def met(self, first_action_s: float, last_action_s: float) -> tuple[int, ...]:
        """Indexes of the faults after which work went on that had begun before."""
        return tuple(
            number - 1
            for number, at_s in sorted(self.at_s.items())
            if first_action_s <= at_s < last_action_s
        )


class Seed(Protocol):
    """The part of an Outcome that is counted."""

    @property
    def kinds(self) -> tuple[str, ...]: ...
    @property
    def faults(self) -> tuple[Fault, ...]: ...
    @property
    def met(self) -> tuple[int, ...]: ...


@dataclass(slots=True)
class Coverage:
    """How many faults of each kind met work in many seeds."""

    allowed: tuple[str, ...] = ()
    met: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: "Seed") -> None:
        self.allowed = outcome.kinds
        self.met.update(outcome.faults[index].kind for index in outcome.met)

    def join(self, other: "Coverage") -> None:
        self.allowed = other.allowed or self.allowed
        self.met += other.met

    @property
    def nothing_met(self) -> bool:
        """Whether faults were allowed, and none of them met work."""
        return bool(self.allowed) and not self.met

    def __str__(self) -> str:
        if not self.allowed:
            return "the scenario allows no faults"
        if self.nothing_met:
            return NOTHING_MET
        text = ", ".join(f"{kind} {count}" for kind, count in self.met.most_common())
        never = [kind for kind in self.allowed if not self.met[kind]]
        return f"faults that met work: {text}" + (f"; none: {', '.join(never)}" if never else "")


NOTHING_MET = (
    "no fault met work: none of them struck between the first and the last message, so nothing was "
    "tested. Simulate more seeds, allow more kinds of faults, or give the processes work: inputs, "
    "soon after they start"
)
