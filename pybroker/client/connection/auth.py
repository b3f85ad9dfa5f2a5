"""The credentials in CONNECT and AUTH_RESPONSE."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Authentication:
    """A method's name and its data, which is fetched again at every challenge."""

    method: str
    data: Callable[[], bytes] = field(repr=False)


def AuthenticationToken(token: str | Callable[[], str]) -> Authentication:
    """A JSON Web Token, or a function that returns the current one."""
    supplier = token if callable(token) else lambda: token
    return Authentication("token", lambda: supplier().encode())


def AuthenticationBasic(username: str, password: str) -> Authentication:
    """A user name and a password, as in the broker's .htpasswd."""
    return Authentication("basic", lambda: f"{username}:{password}".encode())


def AuthenticationTLS() -> Authentication:
    """The client certificate given to Client is the identity."""
    return Authentication("tls", lambda: b"")
