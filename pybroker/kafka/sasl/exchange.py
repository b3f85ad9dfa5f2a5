"""A login in progress."""

from dataclasses import dataclass
from typing import Protocol

from pybroker.security.identity import Identity


@dataclass(frozen=True, slots=True)
class Step:
    """`answer` goes to the client; `identity` ends the exchange, unless it is None. Without
    authentication the exchange ends with `done` and no identity.
    """

    answer: bytes = b""
    identity: Identity | None = None
    done: bool = False


class Exchange(Protocol):
    async def step(self, data: bytes) -> Step:
        """`data` is from the client. Raises AuthenticationError, AuthorizationError,
        TooManyRequests.
        """
        ...
