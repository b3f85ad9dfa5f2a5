"""The interface between a broker and its cluster. A broker that is alone does not load that
code.
"""

from typing import Protocol

from managed_ledger.factory import ManagedLedgerFactory
from pybroker.base.listeners import Listeners
from pybroker.broker.other_brokers import Bundles, OtherBrokers
from pybroker.broker.ownership import BrokerAddress, Ownership
from pybroker.broker.topics import Topics
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.participants import Participants


class Parts(Protocol):
    """The parts of the broker that its membership uses. The membership replaces `participants`."""

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
        """Call it when the storage is open, before everything else. Raises ManagedLedgerError."""
        ...

    async def join(self, address: BrokerAddress, listeners: Listeners) -> None:
        """Call it when the broker listens. Other brokers send clients to it from now on."""
        ...

    async def leave(self) -> None:
        """When this returns, all topics and coordinators are closed and free for other brokers."""
        ...

    async def close(self) -> None: ...

    def reload_certificates(self) -> list[bool]:
        """Use renewed certificates for new connections to other brokers. For each of them, whether
        it is usable; otherwise the reason was logged.
        """
        ...
