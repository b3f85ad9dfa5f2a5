"""Raises the limit of file descriptors as far as allowed, and limits connections accordingly.

The other descriptors are for the storage, the HTTP port, the listening sockets and Python itself.
"""

import resource
from typing import Final

from pybroker.security.tls_connection import most_handshakes

_RESERVED: Final = 96  # the storage's files, threads and spare descriptors, and Python's own files
_HTTP: Final = 200  # connections of the HTTP port
_ENOUGH: Final = 1_048_576  # the limit to set if the system has none


def raise_limit() -> int:
    """Raise the soft limit to the hard limit; returns the number of descriptors allowed."""
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
    """The number of binary-protocol connections that may be open; at least one."""
    available = limit - _RESERVED - tls_ports * sum(most_handshakes(limit))
    return max(1, min(max_connections, available - min(_HTTP, available // 4)))
