"""Connections that have not logged in yet: when room is short, one of them is closed.

It is the oldest one of the machine that has most of them, so a peer that opens many connections
without logging in loses its own. Each step takes constant time, however many connections there are.
"""

from typing import Generic, TypeVar

from pybroker.base.machines import machine_of

T = TypeVar("T")


class PendingConnections(Generic[T]):
    def __init__(self) -> None:
        self._machine_of: dict[T, str] = {}
        self._of_machine: dict[str, dict[T, None]] = {}  # the oldest first
        self._with: dict[int, dict[str, None]] = {}  # machines, by the number of their connections
        self._most = 0

    def __len__(self) -> int:
        return len(self._machine_of)

    def __contains__(self, connection: object) -> bool:
        return connection in self._machine_of

    def add(self, connection: T, address: str) -> None:
        machine = machine_of(address)
        self._machine_of[connection] = machine
        same = self._of_machine.setdefault(machine, {})
        same[connection] = None
        self._move(machine, len(same) - 1, len(same))

    def remove(self, connection: T) -> None:
        """It has logged in or closed. Idempotent."""
        machine = self._machine_of.pop(connection, None)
        if machine is None:
            return
        same = self._of_machine[machine]
        del same[connection]
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

    def oldest_of(self, address: str) -> T | None:
        """The oldest one of the machine with this address; None if it has none."""
        return next(iter(self._of_machine.get(machine_of(address), ())), None)

    def oldest_where_most_are(self) -> T | None:
        if not self._most:
            return None
        machine = next(iter(self._with[self._most]))
        return next(iter(self._of_machine[machine]))
