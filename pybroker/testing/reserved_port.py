"""Ports that stay reserved for a test broker while it is down.

A broker that comes back on its port finds it taken if another process was given it meanwhile. A
socket that is bound and does not listen prevents that: no other process is given its port, and
connections to it are refused. A broker can bind it by number all the same, because both sockets
have SO_REUSEADDR and only one listens. This is Linux's rule; on other systems nothing is reserved.
"""

import socket
import sys


class ReservedPort:
    """A free port until `release`; its number is 0, any port, where none can be reserved."""

    def __init__(self) -> None:
        self.number = 0
        self._socket: socket.socket | None = None
        if sys.platform == "linux":
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("", 0))
            self.number = self._socket.getsockname()[1]

    def release(self) -> None:
        """Idempotent."""
        if self._socket is not None:
            self._socket.close()
