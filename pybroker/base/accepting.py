"""Accepts connections a few at a time, so that many new ones do not delay everything else.

asyncio accepts as many connections per turn of the loop as the backlog allows to wait. Here many
may wait, but only a few are accepted per turn, so other connections are served in between.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

ACCEPTED_A_TURN: Final = 16  # since Python 3.14, one more
_BACKLOG: Final = 1024  # connections that the system queues until they are accepted


# A bound socket, or a host and a port where the loop is to listen.
Endpoint = tuple[str, int] | socket.socket


async def listen(
    new_protocol: Callable[[], asyncio.BaseProtocol], where: Endpoint
) -> asyncio.Server:
    """Serve. Raises OSError if the port is taken."""
    loop = asyncio.get_running_loop()
    if not isinstance(where, socket.socket):
        return await loop.create_server(new_protocol, *where)
    server = await loop.create_server(new_protocol, sock=where, backlog=ACCEPTED_A_TURN)
    let_many_wait(where)
    return server


def let_many_wait(listener: socket.socket) -> None:
    """Sets the backlog again: asyncio has set it to the number accepted per turn."""
    listener.listen(_BACKLOG)
