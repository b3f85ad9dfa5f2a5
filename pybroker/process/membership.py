"""The interface between a broker and its cluster. A broker that is alone does not load that
code.
"""

from collections.abc import Sequence
from typing import Protocol

from managed_ledger.factory import ManagedLedgerFactory
from pybroker.base.listeners import Listeners
from pybroker.broker.brokers.other_brokers import Bundles, OtherBrokers, Reply
from pybroker.broker.brokers.ownership import BrokerAddress, KafkaAddress, Ownership
from pybroker.broker.topics import Topics
from pybroker.process.kafka_offsets import LazyOffsets
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.ends.participants import Participants
from pybroker.wire import pulsar_api_pb2 as pb


class Served(Protocol):
    """What a broker has opened."""

    @property
    def topics(self) -> Topics: ...

    @property
    def coordinators(self) -> Coordinators: ...

    @property
    def ledgers(self) -> ManagedLedgerFactory: ...

    @property
    def kafka_offsets(self) -> LazyOffsets: ...


class Parts(Served, Protocol):
    """The parts of the broker that its membership uses. The membership replaces `participants`."""

    participants: Participants


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

    def kafka_addresses(self) -> dict[str, KafkaAddress]:
        """Where each live broker serves Kafka's clients, by broker id, sorted."""
        ...

    def id_of(self, address: BrokerAddress) -> str | None:
        """The id of the live broker with this address."""
        ...

    def bookies(self) -> Sequence[str]:
        """The ids of the bookies that accept writes, sorted."""
        ...

    @property
    def is_certain(self) -> bool:
        """Whether no other broker can have taken what this one serves. Cheap."""
        ...

    async def ask_admin(self, method: str, target: str, body: bytes = b"") -> Reply:
        """Ask this broker's own admin API, for the whole cluster. Raises ServiceNotReady."""
        ...

    async def ask_kafka(
        self, broker: BrokerAddress, command: pb.CommandKafkaTransaction
    ) -> pb.CommandKafkaTransactionResponse:
        """Ask another broker for the transaction of a Kafka producer. Raises ServiceNotReady, also
        if it does not serve Kafka's clients.
        """
        ...

    async def open(self, broker: Parts) -> None:
        """Call it when the storage is open, before everything else. Raises ManagedLedgerError."""
        ...

    async def join(self, address: BrokerAddress, listeners: Listeners, kafka: KafkaAddress) -> None:
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
