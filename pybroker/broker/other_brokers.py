"""What the admin API needs of a cluster: its bundles, and how to ask the other brokers."""

import json
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pybroker.base.errors import ServiceNotReady
from pybroker.broker.ownership import BrokerAddress, Bundle, Elsewhere

# This header says that a broker asks: what is asked is this broker's part, and nothing else.
ASKED_BY_A_BROKER: Final = "X-Pybroker-Asked-By-A-Broker"


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
        """None if there is no body, or none that can be read."""
        try:
            return json.loads(self.body) if self.body else None
        except ValueError:
            return None


class OtherBrokers(Protocol):
    def others(self) -> dict[str, BrokerAddress]:
        """The live brokers without this one, by id, sorted."""
        ...

    def is_foreign(self, broker_id: str) -> bool:
        """Whether it is one of Apache Pulsar, which may answer in its own way."""
        ...

    async def ask(
        self, broker: BrokerAddress, method: str, target: str, body: bytes = b""
    ) -> Reply:
        """`target`: path and query. `body` is JSON. A redirect is an answer. Raises
        ServiceNotReady: the other broker may have done it all the same.
        """
        ...


class Bundles(Protocol):
    """The bundles of the whole cluster."""

    async def of_namespace(self, namespace: str) -> tuple[Bundle, ...]:
        """In order. Divides the namespace if no broker has done it. Raises ServiceNotReady."""
        ...

    async def served_of(self, namespace: str) -> list[Bundle]:
        """Those that a broker serves, as ZooKeeper says now. Raises ServiceNotReady."""
        ...

    async def divide(self, namespace: str, bundles: int) -> None:
        """Of a namespace that has no topics yet. Raises ServiceNotReady."""
        ...

    async def forget(self, namespace: str) -> None:
        """It is deleted, and its bundles with it. Raises ServiceNotReady."""
        ...

    def owns_bundle(self, bundle: Bundle) -> bool: ...

    def owned(self) -> list[Bundle]: ...

    def owner_elsewhere(self, bundle: Bundle) -> BrokerAddress | None:
        """As far as it is known here; None also if this broker serves it."""
        ...

    async def lookup_bundle(self, bundle: Bundle, authoritative: bool) -> Elsewhere | None:
        """As `Ownership.lookup`. Raises ServiceNotReady."""
        ...

    async def release(self, bundle: Bundle, destination: str = "") -> None:
        """Close its topics and give it back. Does nothing if this broker does not serve it. For a
        short time, all brokers then send lookups to the one with the id `destination`, if given.
        Raises ServiceNotReady.
        """
        ...

    def withdraw(self, bundle: Bundle, destination: str) -> None:
        """The `destination` of a release does not take it: any broker may, unless the bundle was
        sent to another one since.
        """
        ...

    async def split(self, bundle: Bundle, at: int) -> None:
        """This broker serves both halves when it returns; their topics stay open. Raises
        ServiceNotReady.
        """
        ...


class BundleElsewhere(ServiceNotReady):
    """The admin API redirects to the bundle's owner."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(f"{bundle} is not served by this broker", "ask its owner")
        self.bundle = bundle
