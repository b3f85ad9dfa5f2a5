"""File descriptors: raises the limit as far as allowed, and limits connections accordingly.

The rest is for the storage, the HTTP port, the listening sockets and Python itself.
"""

import resource
from typing import Final

from pybroker.security.tls_connection import most_handshakes

_RESERVED: Final = 96  # the storage's spare ones, its files and threads, whatever Python opens
_HTTP: Final = 200  # connections of the HTTP port
_ENOUGH: Final = 1_048_576  # if there is no limit


def raise_limit() -> int:
    """Take what the hard limit allows; returns how many descriptors there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return min(wanted, _ENOUGH)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # some systems refuse their own stated maximum
        return soft
    return wanted


def connections(max_connections: int, limit: int, tls_ports: int = 0) -> int:
    """How many binary-protocol connections may be open; at least one."""
    available = limit - _RESERVED - tls_ports * sum(most_handshakes(limit))
    return max(1, min(max_connections, available - min(_HTTP, available // 4)))
