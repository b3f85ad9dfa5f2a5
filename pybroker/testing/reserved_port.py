"""Ports that stay reserved for a test broker while it is down.

Otherwise another process might get the port before the broker comes back. A socket that is bound
but does not listen prevents this: no other process gets its port, and connections to it are
refused. A broker can still bind the port by number, because both sockets have SO_REUSEADDR and only
one listens. This is the rule on Linux; on other systems nothing is reserved.
"""

import socket
import sys


class ReservedPort:
    """A free port, reserved until `release`. Its number is 0, any port, on systems where none can
    be reserved.
    """

    def __init__(self) -> None:
        self.number = 0
        self._socket: socket.socket | None = None
        if sys.platform == "linux":
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("", 0))
            self.number = self._socket.getsockname()[1]

    def release(self) -> None:
        """Ends the reservation. Idempotent."""
        if self._socket is not None:
            self._socket.close()
