"""What a broker needs of a cluster; a broker that is alone has none, and imports nothing of it."""

from typing import Protocol

from managed_ledger.factory import ManagedLedgerFactory
from pybroker.base.listeners import Listeners
from pybroker.broker.other_brokers import Bundles, OtherBrokers
from pybroker.broker.ownership import BrokerAddress, Ownership
from pybroker.broker.topics import Topics
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.participants import Participants


class Parts(Protocol):
    """Of the broker that is a member, which may replace `participants`."""

    participants: Participants

    @property
    def topics(self) -> Topics: ...

    @property
    def coordinators(self) -> Coordinators: ...

    @property
    def ledgers(self) -> ManagedLedgerFactory: ...


class Membership(Protocol):
    @property
    def ownership(self) -> Ownership: ...

    @property
    def broker_id(self) -> str:
        """host:port; empty before `join`."""
        ...

    @property
    def bundles(self) -> Bundles: ...

    @property
    def others(self) -> OtherBrokers: ...

    def brokers(self) -> list[str]:
        """The ids of the live brokers, sorted."""
        ...

    async def open(self, broker: Parts) -> None:
        """The storage is open, and nothing else is. Raises ManagedLedgerError."""
        ...

    async def join(self, address: BrokerAddress, listeners: Listeners) -> None:
        """The broker listens. Others send clients there from now on."""
        ...

    async def leave(self) -> None:
        """All topics and coordinators are closed, and free for others, when this returns."""
        ...

    async def close(self) -> None: ...

    def reload_certificates(self) -> None:
        """Renewed ones are for new connections to others."""
        ...
