"""Entries to redeliver after a delay, unless they are removed first."""

import asyncio
from collections.abc import Callable

from pybroker.client.consuming.acks import EntryKey


class Redeliveries:
    """All entries wait equally long, so they fall due in the order in which they were added."""

    def __init__(self, delay_ms: int, redeliver: Callable[[list[EntryKey]], None]) -> None:
        self._delay_s = delay_ms / 1000
        self._redeliver = redeliver
        self._due_s: dict[EntryKey, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, key: EntryKey) -> None:
        """Starts the wait; an entry that is already waiting keeps its place."""
        loop = asyncio.get_running_loop()
        self._due_s.setdefault(key, loop.time() + self._delay_s)
        if self._timer is None:
            self._timer = loop.call_later(self._delay_s, self._fall_due)

    def remove(self, key: EntryKey) -> None:
        self._due_s.pop(key, None)

    def remove_up_to(self, key: EntryKey) -> None:
        self._due_s = {other: due_s for other, due_s in self._due_s.items() if other > key}

    def clear(self) -> None:
        self._due_s.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fall_due(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        due = []
        for key, due_s in self._due_s.items():
            if due_s > loop.time():
                self._timer = loop.call_at(due_s, self._fall_due)
                break
            due.append(key)
        for key in due:
            del self._due_s[key]
        if due:
            self._redeliver(due)
