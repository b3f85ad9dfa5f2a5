"""The requests that wait for messages. Each holds a connection of the HTTP port, and those are few.

When there are too many, the oldest of the machine with the most is answered with what it has: so
nobody is refused, and no machine keeps the others from waiting.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pybroker.base.machines import machine_of

MOST: Final = 100


class Polls:
    def __init__(self) -> None:
        self._waiting: dict[asyncio.Timeout, str] = {}  # with their machines; the oldest first

    @contextmanager
    def waiting(self, address: str, limit: asyncio.Timeout) -> Iterator[None]:
        """`limit` ends the wait, at the latest."""
        if len(self._waiting) >= MOST:
            self._end_one()
        self._waiting[limit] = machine_of(address)
        try:
            yield
        finally:
            self._waiting.pop(limit, None)

    def _end_one(self) -> None:
        ((machine, _),) = Counter(self._waiting.values()).most_common(1)
        oldest = next(limit for limit, each in self._waiting.items() if each == machine)
        del self._waiting[oldest]
        oldest.reschedule(asyncio.get_running_loop().time())
