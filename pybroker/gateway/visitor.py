"""Who asks over HTTP, as far as the rest of the broker needs to know."""

from dataclasses import dataclass, field

from pybroker.base.machines import machine_of
from pybroker.security.identity import Credentials, Identity

Key = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Visitor:
    address: tuple[str, int]
    identity: Identity | None = None  # None: no authentication
    # What the visitor presented, if it can be presented to other brokers: not a certificate.
    shown: Credentials | None = field(default=None, repr=False)

    @property
    def key(self) -> Key:
        """The same for all requests of a role from one machine."""
        roles = () if self.identity is None else self.identity.roles
        return machine_of(self.address[0]), roles
