"""What a peer shows, and who it is for that: values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Certificate = Mapping[str, Any]  # as ssl.SSLObject.getpeercert gives it


@dataclass(frozen=True, slots=True)
class Credentials:
    """`method` is the provider's name on the wire; empty when the peer names none."""

    method: str
    data: bytes = field(default=b"", repr=False)
    certificate: Certificate | None = None  # of the TLS connection, verified


@dataclass(frozen=True, slots=True)
class Login:
    """What a provider found: a role, until it expires (wall time; None: never)."""

    role: str
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a connection or a request acts for.

    Behind a proxy both must be permitted what is asked: the proxy's `role`, and the `original`.
    """

    role: str
    expires_ms: int | None = None
    original: str | None = None

    @property
    def acting(self) -> str:
        """Whose deeds these are: owner of the transactions begun."""
        return self.original or self.role

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role,) if self.original is None else (self.role, self.original)


class Provider(Protocol):
    """One way to show who one is."""

    method: str

    async def authenticate(self, credentials: Credentials, address: str) -> Login:
        """`address` is where they come from, which may be a proxy's.

        Raises AuthenticationError, with a sentence that gives nothing away; TooManyRequests.
        """
        ...

    def reload(self) -> None:
        """Look at its files now: what they say holds for who logs in from now on. Raises
        KeyFailure, and goes on as before.
        """
        ...
