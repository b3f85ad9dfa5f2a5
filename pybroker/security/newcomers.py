"""Who is connected and has not shown who it is yet: where room is short, one of these makes it.

The machine that has most of them loses its oldest, so a peer that opens many connections and says
nothing pays for that itself. Each step takes the same time, however many there are.
"""

from typing import Generic, TypeVar

from pybroker.base.machines import machine_of

T = TypeVar("T")


class Newcomers(Generic[T]):
    def __init__(self) -> None:
        self._machine_of: dict[T, str] = {}
        self._of_machine: dict[str, dict[T, None]] = {}  # the oldest first
        self._with: dict[int, dict[str, None]] = {}  # machines, by how many they have
        self._most = 0

    def __len__(self) -> int:
        return len(self._machine_of)

    def came(self, newcomer: T, address: str) -> None:
        machine = machine_of(address)
        self._machine_of[newcomer] = machine
        same = self._of_machine.setdefault(machine, {})
        same[newcomer] = None
        self._move(machine, len(same) - 1, len(same))

    def went(self, newcomer: T) -> None:
        """It is in, or away. Repeatable."""
        machine = self._machine_of.pop(newcomer, None)
        if machine is None:
            return
        same = self._of_machine[machine]
        del same[newcomer]
        if not same:
            del self._of_machine[machine]
        self._move(machine, len(same) + 1, len(same))

    def _move(self, machine: str, before: int, after: int) -> None:
        if before:
            del self._with[before][machine]
            if not self._with[before]:
                del self._with[before]
        if after:
            self._with.setdefault(after, {})[machine] = None
        if after > self._most or self._most not in self._with:
            self._most = after

    def of_machine(self, address: str) -> int:
        return len(self._of_machine.get(machine_of(address), ()))

    def oldest_of(self, address: str) -> T | None:
        """At the machine with this address."""
        return next(iter(self._of_machine.get(machine_of(address), ())), None)

    def oldest_where_most_are(self) -> T | None:
        if not self._most:
            return None
        machine = next(iter(self._with[self._most]))
        return next(iter(self._of_machine[machine]))
