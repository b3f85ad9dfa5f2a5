"""A client's session of a transactional id, as its producers and transactions see it."""

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
        self.name = name  # a digest of the name that its client gave; empty if none
        self.ref: SessionRef | None = None  # once it is durable
        self.is_fenced = False
        # Transactions joining it with their first message, until that is durable.
        self.binding: dict[TxnId, asyncio.Future[TxnId]] = {}

    def require_current(self) -> None:
        """Raises ProducerFenced."""
        if self.is_fenced:
            raise self.fenced()

    def fenced(self) -> PulsarError:
        return producer_fenced(self.id.name)
