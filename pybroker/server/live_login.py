"""Who a connection acts for, and until when: checked again while it lives."""

from pybroker.security.identity import Identity


class LiveLogin:
    """`can_refresh`: the client answers AUTH_CHALLENGE, and what it shows then is all there is."""

    __slots__ = ("can_refresh", "challenged", "identity", "is_super_user", "method")

    def __init__(
        self, identity: Identity, method: str, can_refresh: bool, is_super_user: bool
    ) -> None:
        self.identity = identity
        self.method = method
        self.can_refresh = can_refresh
        self.is_super_user = is_super_user
        self.challenged = False  # asked for new credentials, and not answered yet

    def has_expired(self, now_ms: int) -> bool:
        return self.identity.expires_ms is not None and now_ms >= self.identity.expires_ms
