"""What several logs gather in one turn of the event loop goes to the storage in one go.

A callback that runs soon calls everybody who has something to write. What these writes lead to, in
other logs, is written before the callback returns: the loop does nothing in between.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from managed_ledger.storage.operations import call_safely

Write = Callable[[], None]


class WouldWait(Exception):
    """What was to be in the storage's queue in this turn cannot be: something is still being
    loaded, or a log is about to go on in a new ledger. Nothing has happened.
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
        """Returns when everybody has written, but to whom is writing already, who goes on with the
        others, too, before the loop does anything else.
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


# The values must not refer to the loop, which else would never be forgotten.
_turn_of: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, ThisTurn]] = WeakKeyDictionary()


def this_turn() -> ThisTurn:
    """Of the loop that runs."""
    loop = asyncio.get_running_loop()
    turn = _turn_of.get(loop)
    if turn is None:
        turn = _turn_of[loop] = ThisTurn()
    return turn
