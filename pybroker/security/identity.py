"""A peer's credentials, and the identity that results from them: values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Certificate = Mapping[str, Any]  # as returned by ssl.SSLObject.getpeercert


@dataclass(frozen=True, slots=True)
class Credentials:
    """`method` is the provider's name on the wire; empty when the peer names none."""

    method: str
    data: bytes = field(default=b"", repr=False)
    certificate: Certificate | None = None  # of the TLS connection, verified


@dataclass(frozen=True, slots=True)
class Login:
    """A provider's result: a role, until it expires (wall time; None: never)."""

    role: str
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """The roles for which a connection or a request acts.

    Through a proxy both the proxy's `role` and the `original` need the permission.
    """

    role: str
    expires_ms: int | None = None
    original: str | None = None

    @property
    def acting(self) -> str:
        """The acting role, which owns the transactions that it begins."""
        return self.original or self.role

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,) if self.original is None else (self.role, self.original)


class Provider(Protocol):
    """One authentication method."""

    method: str

    async def authenticate(self, credentials: Credentials, address: str) -> Login:
        """`address` is the peer's address, which may be a proxy's.

        Raises AuthenticationError, with a message that reveals nothing; TooManyRequests.
        """
        ...

    def reload(self) -> None:
        """Reload files now, for new logins. Raises KeyFailure, and then keeps the previous
        contents.
        """
        ...
