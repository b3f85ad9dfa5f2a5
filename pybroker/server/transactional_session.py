"""A client's time of holding a transactional id, as its producers and transactions know it."""

import asyncio

from pybroker.base.errors import PulsarError
from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.transactional_ids import (
    SessionRef,
    TransactionalId,
    producer_fenced,
)


class TransactionalSession:
    __slots__ = ("binding", "id", "is_fenced", "name", "ref")

    def __init__(self, transactional_id: TransactionalId, name: str) -> None:
        self.id = transactional_id
        self.name = name  # as its client calls it, as a digest; empty where it does not
        self.ref: SessionRef | None = None  # once it is durable
        self.is_fenced = False
        # Transactions that belong to it from their first message on, until that is durable.
        self.binding: dict[TxnId, asyncio.Future[TxnId]] = {}

    def require_current(self) -> None:
        """Raises ProducerFenced."""
        if self.is_fenced:
            raise self.fenced()

    def fenced(self) -> PulsarError:
        return producer_fenced(self.id.name)
