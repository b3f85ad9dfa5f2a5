"""The cluster as the admin API needs it: its bundles, and requests to the other brokers."""

import json
from dataclasses import dataclass
from typing import Any, Final, Protocol

from managed_ledger.storage.backend import KeyAt
from pybroker.base.errors import ServiceNotReady
from pybroker.broker.brokers.ownership import BrokerAddress, Bundle, OtherOwner

# Marks a request from another broker: the answer covers only this broker's part.
ASKED_BY_A_BROKER: Final = "X-Pybroker-Asked-By-A-Broker"

# In the query of a deletion: it is part of a larger one, or continues one that was interrupted, and
# must not touch what was created since then. See Tenants.is_doomed.
ONLY_DOOMED: Final = "onlyDoomed"


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes = b""
    location: str = ""  # of a redirect
    media_type: str = "application/json"

    @property
    def is_done(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """None if there is no body, or if it is not JSON."""
        try:
            return json.loads(self.body) if self.body else None
        except ValueError:
            return None


class OtherBrokers(Protocol):
    def others(self) -> dict[str, BrokerAddress]:
        """The live brokers except this one, by id, sorted."""
        ...

    def is_foreign(self, broker_id: str) -> bool:
        """Whether this is a broker of Apache Pulsar, which may answer in its own way."""
        ...

    async def ask(
        self, broker: BrokerAddress, method: str, target: str, body: bytes = b""
    ) -> Reply:
        """`target` is path and query, `body` is JSON. A redirect is returned, not followed. Raises
        ServiceNotReady; even then the other broker may have carried out the request.
        """
        ...


class Bundles(Protocol):
    """The bundles of the whole cluster."""

    async def of_namespace(self, namespace: str) -> tuple[Bundle, ...]:
        """The bundles in order, as far as this broker knows. Divides the namespace if no broker has
        done so. Raises ServiceNotReady.
        """
        ...

    async def current(self, namespace: str) -> tuple[Bundle, ...]:
        """The bundles in order, as ZooKeeper says now; none if the namespace is not divided. Raises
        ServiceNotReady.
        """
        ...

    async def served_of(self, namespace: str) -> list[Bundle]:
        """The bundles that some broker serves, as ZooKeeper says now. Raises ServiceNotReady."""
        ...

    async def divide(self, namespace: str, bundles: int) -> None:
        """Divide a namespace that has no topics yet. Raises ServiceNotReady, NotFound."""
        ...

    async def forget(self, namespace: str, only_while: KeyAt) -> None:
        """Delete the division of a namespace that is being deleted. Raises ServiceNotReady;
        BadVersion if there is a division, but the condition does not hold.
        """
        ...

    def owns_bundle(self, bundle: Bundle) -> bool: ...

    def owned(self) -> list[Bundle]: ...

    def remote_owner(self, bundle: Bundle) -> BrokerAddress | None:
        """The owner as far as this broker knows; None also if this broker serves the bundle."""
        ...

    async def lookup_bundle(self, bundle: Bundle, authoritative: bool) -> OtherOwner | None:
        """Like `Ownership.lookup`. Raises ServiceNotReady."""
        ...

    async def release(self, bundle: Bundle, destination: str = "") -> None:
        """Close the bundle's topics and give it up. Does nothing if this broker does not serve it.
        If the broker id `destination` is given, all brokers send lookups there for a short time.
        Raises ServiceNotReady.
        """
        ...

    def withdraw(self, bundle: Bundle, destination: str) -> None:
        """Stop sending lookups to the `destination` of a release, because that broker does not take
        the bundle. Has no effect if the bundle was released to another destination since.
        """
        ...

    async def split(self, bundle: Bundle, at: int) -> None:
        """When this returns, this broker serves both halves; their topics stay open. Raises
        ServiceNotReady.
        """
        ...


class BundleOfAnotherBroker(ServiceNotReady):
    """The admin API redirects to the bundle's owner."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(f"{bundle} is not served by this broker", "ask its owner")
        self.bundle = bundle
