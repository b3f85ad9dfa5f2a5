"""Listening so that connections which come all at once do not keep everybody waiting.

asyncio accepts in one turn of the loop as many connections as may wait for it. Here many may wait,
and a few are accepted in a turn, so what they and others say is heard between them.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

ACCEPTED_A_TURN: Final = 16
_BACKLOG: Final = 1024  # that the system keeps until they are accepted


async def listen(
    new_protocol: Callable[[], asyncio.BaseProtocol], listener: socket.socket
) -> asyncio.Server:
    """Serve on a bound socket."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(new_protocol, sock=listener, backlog=ACCEPTED_A_TURN)
    let_many_wait(listener)
    return server


def let_many_wait(listener: socket.socket) -> None:
    """To a socket that listens already: asyncio has told the system the number of one turn."""
    listener.listen(_BACKLOG)
