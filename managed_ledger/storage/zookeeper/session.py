"""The states of a ZooKeeper session as this client knows them, and what may follow.

CONNECTING: no session yet. CONNECTED: ZooKeeper answers. SUSPENDED: the connection is gone, the
session may live on; what it owns must not be relied on. EXPIRED: ZooKeeper said so, or was out of
reach for as long as the session lasts; whatever the session owned may belong to others. CLOSED: by
this client. The last two are final.
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
