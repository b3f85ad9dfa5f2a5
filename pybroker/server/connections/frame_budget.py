"""Limits the bytes of partly received frames in the whole broker.

A large frame counts with its full size as soon as it begins. If it does not fit, the broker stops
reading its connection until other connections have completed theirs, first come, first served. A
connection that is being read completes its frame or is closed for taking too long, so every wait
ends. A machine of which no other large frame is being received finds room, as much again, where
others have taken all: otherwise one machine, whose frames never end, would hold up everybody.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from pybroker.base.machines import machine_of

FREE_BYTES: Final = 64 * 1024  # per connection; smaller frames are not counted


def machine_at(transport: asyncio.BaseTransport | None) -> str:
    """The machine at the other end."""
    peer = None if transport is None else transport.get_extra_info("peername")
    return machine_of(peer[0]) if peer else ""


class FrameBudget:
    def __init__(self, limit_bytes: int) -> None:
        self.taken_bytes = 0
        self._limit_bytes = limit_bytes
        self._of_machines = Counter[str]()  # frames
        # In order of arrival.
        self._waiting: dict[Callable[[], None], tuple[int, str]] = {}

    def take(self, size_bytes: int, granted: Callable[[], None], machine: str) -> bool:
        """False when the caller must wait until `granted` is called."""
        waits = bool(self._waiting) and machine in self._of_machines
        if waits or not self._fits(size_bytes, machine):
            self._waiting[granted] = size_bytes, machine
            return False
        self._count(size_bytes, machine)
        return True

    def give_back(self, size_bytes: int, granted: Callable[[], None], machine: str) -> None:
        """Releases what was taken, or cancels the wait."""
        if self._waiting.pop(granted, None) is None:
            self.taken_bytes -= size_bytes
            self._of_machines[machine] -= 1
            if not self._of_machines[machine]:
                del self._of_machines[machine]
        if self._waiting:
            self._grant()

    def _grant(self) -> None:
        """Who does not fit holds up those behind it, but for machines that receive none."""
        is_held_up = False
        for granted, (size_bytes, machine) in list(self._waiting.items()):
            if is_held_up and machine in self._of_machines:
                continue
            if self._fits(size_bytes, machine):
                del self._waiting[granted]
                self._count(size_bytes, machine)
                granted()
            else:
                is_held_up = True

    def _count(self, size_bytes: int, machine: str) -> None:
        self.taken_bytes += size_bytes
        self._of_machines[machine] += 1

    def _fits(self, size_bytes: int, machine: str) -> bool:
        """Whether the size fits; a single frame always does."""
        most = self._limit_bytes * (1 if machine in self._of_machines else 2)
        return not self.taken_bytes or self.taken_bytes + size_bytes <= most
