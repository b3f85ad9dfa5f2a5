"""Refuses connections beyond a limit: each gets the reason, then is closed.

Input that arrives in the meantime is read and ignored. Otherwise closing would send a reset, which
may overtake the reason.
"""

import asyncio
from typing import Final

from pybroker.base.errors import PulsarError
from pybroker.wire import commands

_TO_READ_IT_S: Final = 1.0
_MOST: Final = 32  # at a time; another one replaces the oldest
_NOBODYS_REQUEST: Final = 2**64 - 1


class Refusals:
    def __init__(self) -> None:
        self._told: dict[asyncio.Transport, asyncio.TimerHandle] = {}  # the oldest first

    def tell(self, transport: asyncio.Transport, reason: PulsarError) -> None:
        while len(self._told) >= _MOST:
            self._end(next(iter(self._told)))
        transport.write(commands.error(_NOBODYS_REQUEST, reason))
        later = asyncio.get_running_loop().call_later(_TO_READ_IT_S, self._end, transport)
        self._told[transport] = later

    def _end(self, transport: asyncio.Transport) -> None:
        self._told.pop(transport).cancel()
        transport.abort()

    def close(self) -> None:
        for transport in list(self._told):
            self._end(transport)
