"""The states of a ZooKeeper session, as this client sees it, and their transitions.

CONNECTING: no session yet. CONNECTED: ZooKeeper answers. SUSPENDED: the connection is gone, and the
session may still exist; do not rely on what it owns. EXPIRED: ZooKeeper has said so or was out of
reach for the session timeout; other clients may own what the session owned. CLOSED: by this client.
The last two are final.
"""

from enum import Enum
from typing import Final


class SessionState(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    CLOSED = "closed"


SESSION_TRANSITIONS: Final = {
    SessionState.CONNECTING: {SessionState.CONNECTED, SessionState.CLOSED, SessionState.EXPIRED},
    SessionState.CONNECTED: {SessionState.SUSPENDED, SessionState.EXPIRED, SessionState.CLOSED},
    SessionState.SUSPENDED: {SessionState.CONNECTED, SessionState.EXPIRED, SessionState.CLOSED},
    SessionState.EXPIRED: {SessionState.CLOSED},
    SessionState.CLOSED: set[SessionState](),
}
FINAL_STATES: Final = frozenset({SessionState.EXPIRED, SessionState.CLOSED})
