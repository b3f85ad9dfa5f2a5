"""A connection's identity, whose expiry is checked while the connection lives."""

from pybroker.security.identity import Identity


class LiveLogin:
    """`can_refresh`: the client answers AUTH_CHALLENGE with complete credentials."""

    __slots__ = ("can_refresh", "challenged", "identity", "is_super_user", "method")

    def __init__(
        self, identity: Identity, method: str, can_refresh: bool, is_super_user: bool
    ) -> None:
        self.identity = identity
        self.method = method
        self.can_refresh = can_refresh
        self.is_super_user = is_super_user
        self.challenged = False  # asked for new credentials, not yet answered

    def has_expired(self, now_ms: int) -> bool:
        return self.identity.expires_ms is not None and now_ms >= self.identity.expires_ms
