"""Writes the records that several logs gather in one turn of the event loop together.

A scheduled callback calls every registered writer. If these writes cause records in other logs,
those are written before the callback returns, so the loop runs nothing in between.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from managed_ledger.storage.operations import call_safely

Write = Callable[[], None]


class WouldWait(Exception):
    """The record cannot be queued in the storage in this turn: a topic or log is still loading, or
    a log is rolling over to a new ledger. Nothing has changed.
    """


class ThisTurn:
    def __init__(self) -> None:
        self._to_write: deque[Write] = deque()
        self._is_scheduled = self._is_writing = False

    def will_write(self, write: Write) -> None:
        self._to_write.append(write)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._scheduled)

    def write_now(self) -> None:
        """Call all registered writers. If another call is in progress, return at once: that call
        runs the remaining writers before the loop runs anything else.
        """
        if self._is_writing:
            return
        self._is_writing = True
        while self._to_write:
            call_safely(self._to_write.popleft())
        self._is_writing = False

    def _scheduled(self) -> None:
        self._is_scheduled = False
        self.write_now()


# The values must not refer to the loop; otherwise it would never be freed.
_turn_of: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, ThisTurn]] = WeakKeyDictionary()


def this_turn() -> ThisTurn:
    """The ThisTurn of the running loop."""
    loop = asyncio.get_running_loop()
    turn = _turn_of.get(loop)
    if turn is None:
        turn = _turn_of[loop] = ThisTurn()
    return turn
