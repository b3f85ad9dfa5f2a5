"""What Kafka's transactions need of others: who asks, sessions of transactional ids, limits."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pybroker.base.configuration.config import BrokerConfig
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef, TransactionalId


class TxnClient(NamedTuple):
    """The client of a connection. A `principal` of None may change any transaction."""

    owner: str | None = None
    principal: str | None = None
    peer: str = ""
    version: str = ""


class Sessions(Protocol):
    """The transactional ids, which Pulsar's clients use, too."""

    async def begin(self, id: TransactionalId, name: str, client: TxnClient) -> SessionRef:
        """A newer session of the id, which holds it when this returns. Raises PulsarError."""
        ...


class ProducerIds(Protocol):
    async def new(self) -> int:
        """An id that no producer has had. Raises ManagedLedgerError."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    max_timeout_ms: int
    max_live_of_principal: int  # 0: no limit

    @classmethod
    def of(cls, config: BrokerConfig) -> "TransactionLimits":
        return cls(config.max_transaction_timeout_ms, config.max_active_transactions_per_principal)
