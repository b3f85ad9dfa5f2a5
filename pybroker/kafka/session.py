"""What handlers know of a connection and of a request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pybroker.kafka.sasl.exchange import Exchange
from pybroker.security.identity import Certificate, Identity


@dataclass(slots=True)
class Session:
    """A connection's state between requests. `certificate` is that of its TLS connection."""

    number: int
    peer: str = "unknown"  # host:port
    address: str = "unknown"  # the host of `peer`
    local_host: str = "127.0.0.1"  # where the client reached the broker
    local_port: int = 0
    certificate: Certificate | None = None
    is_encrypted: bool = False  # by TLS
    identity: Identity | None = None  # None: not logged in, or everyone may do everything
    mechanism: str = ""  # of SASL
    exchange: Exchange | None = None  # the login in progress
    sends_raw_tokens: bool = False  # the next frame is a message of the login, without a request
    closing: str = ""  # why the connection is to be closed after the response
    client_id: str | None = None
    software_name: str = ""
    software_version: str = ""
    # What the requests of one kind keep between them, by a name of their choice.
    kept: dict[str, Any] = field(default_factory=dict)
    at_end: list[Callable[[], None]] = field(
        default_factory=list
    )  # called when the connection ends

    @property
    def user(self) -> str:
        """Whose memory it takes: its role, or its address."""
        return self.address if self.identity is None else self.identity.acting

    def __str__(self) -> str:
        return f"{self.peer} ({self.client_id})" if self.client_id else self.peer


@dataclass(frozen=True, slots=True)
class Request:
    """`body` has every field of the request's shape, whatever its version."""

    key: int
    version: int
    client_id: str | None
    body: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.body[name]
