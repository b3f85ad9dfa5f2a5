"""Fakes of connections, as far as sessions of transactional ids see them."""

from typing import Any

from pybroker.server.connections.slots import ProducerSlot
from pybroker.server.transactions.held_ids import Claim
from pybroker.server.transactions.transactional_session import TransactionalSession
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId


class Connection:
    def __init__(self, peer: str = "peer:1") -> None:
        self.peer = peer
        self.owner = None
        self.closed = False
        self.producers: dict[int, ProducerSlot] = {}
        self.sessions: dict[TransactionalId, TransactionalSession] = {}

    def close_producer(self, producer: Any, reason: str) -> None:
        raise AssertionError("it has none")


def claim(session: str = "", epoch: int = 0) -> Claim:
    return Claim.of(None, "x", session, epoch)


def epoch(session: TransactionalSession) -> int:
    assert session.ref is not None
    return session.ref.epoch
