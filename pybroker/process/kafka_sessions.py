"""Sessions of transactional ids for Kafka's producers: the same that Pulsar's clients take.

A Kafka producer keeps no connection to its session. Its id and epoch name it, and its transactions
are bound to it; so the session only has to begin, which fences and ends everything older.
"""

from typing import Any

from pybroker.broker.persistent.producers import Producer
from pybroker.kafka.transactions.surroundings import TxnClient
from pybroker.server.connections.slots import ProducerSlot
from pybroker.server.transactions.held_ids import Claim
from pybroker.server.transactions.transactional_session import TransactionalSession
from pybroker.server.transactions.transactional_sessions import TransactionalSessions
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef, TransactionalId


class _Asking:
    """Implements Holder, as long as the session takes to begin."""

    def __init__(self, client: TxnClient) -> None:
        self.peer = client.peer
        self.owner = client.owner
        self.closed = False
        self.producers: dict[int, ProducerSlot] = {}
        self.sessions: dict[TransactionalId, TransactionalSession] = {}

    def close_producer(self, producer: Producer, reason: str) -> Any:
        """It has none."""


class KafkaSessions:
    """Implements Sessions of Kafka's transactions."""

    def __init__(self, sessions: TransactionalSessions) -> None:
        self._sessions = sessions

    async def begin(self, id: TransactionalId, name: str, client: TxnClient) -> SessionRef:
        asking = _Asking(client)
        try:
            session = await self._sessions.join(asking, Claim.of(id.owner, id.name, name, 0))
        finally:
            self._sessions.left(asking)
        assert session.ref is not None, "it holds the id"
        return session.ref
