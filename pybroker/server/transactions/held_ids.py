"""What a command claims about its session, and the ids that sessions hold on this broker."""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from pybroker.base.errors import ServiceNotReady
from pybroker.broker.persistent.producers import ProducerOwner
from pybroker.server.connections.slots import ProducerSlot
from pybroker.server.transactions.transactional_session import TransactionalSession
from pybroker.transaction.coordinator.sessions.transactional_ids import (
    IdRecord,
    TransactionalId,
    check_id,
    digest,
)

ID_PROPERTY: Final = "txn.transactional.id"
SESSION_PROPERTY: Final = "txn.session"


class Claim(NamedTuple):
    """The session claim in a command."""

    id: TransactionalId
    session: str  # a digest of the name that its client gave; empty if none
    epoch: int  # the epoch it was given; 0: none yet

    @classmethod
    def of_producer(
        cls, owner: str | None, properties: Mapping[str, str], topic_epoch: int
    ) -> "Claim | None":
        """None without a transactional id. Raises NotAllowed for one that is too long."""
        name = properties.get(ID_PROPERTY)
        if name is None:
            return None
        return cls.of(owner, name, properties.get(SESSION_PROPERTY, ""), topic_epoch >> 32)

    @classmethod
    def of(cls, owner: str | None, name: str, session: str, epoch: int) -> "Claim":
        """Raises NotAllowed if the name is empty or too long."""
        check_id(name)
        return cls(TransactionalId(owner, name), digest(session), epoch)

    def was_fenced(self, known: IdRecord | None) -> bool:
        """Whether the claim's session was fenced, or the id has expired since."""
        if self.epoch:
            return known is None or known.epoch != self.epoch
        return known is not None and bool(self.session) and self.session in known.fenced

    def is_fenced_on(self, connection: "Holder") -> bool:
        """Whether the connection's session was fenced, and the claim names that session or none."""
        session = connection.sessions.get(self.id)
        return session is not None and session.is_fenced and self.session in ("", session.name)

    def holds(self, known: IdRecord) -> bool:
        """Whether the claim's session is the one of the record."""
        return known.epoch == self.epoch or bool(self.session and known.session == self.session)


class Holder(ProducerOwner, Protocol):
    """A connection, as seen by its sessions."""

    peer: str
    producers: dict[int, ProducerSlot]
    sessions: dict[TransactionalId, TransactionalSession]

    @property
    def closed(self) -> bool: ...
    @property
    def owner(self) -> str | None: ...


class HeldId:
    """An id that a session holds or is about to hold."""

    __slots__ = (
        "connections",
        "granting",
        "is_overtaken",
        "older",
        "recorded",
        "refusal",
        "session",
        "waits_for",
    )

    def __init__(self, session: TransactionalSession, older: "HeldId | None" = None) -> None:
        self.session = session
        self.older = older  # it holds the id until this session is recorded
        self.connections: dict[Holder, None] = {}
        self.recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.granting: asyncio.Task[int] | None = None
        self.refusal: str | None = None  # why `granting` did not grant it
        self.is_overtaken = False  # another broker has begun a session instead
        self.waits_for = "the newer session's epoch is still being recorded"

    @property
    def is_granted(self) -> bool:
        if not self.is_settled or self.session.ref is None or self.refusal is not None:
            return False
        assert self.granting is not None
        return not self.granting.cancelled() and self.granting.exception() is None

    @property
    def is_settled(self) -> bool:
        return self.granting is not None and self.granting.done()

    def is_of(self, connection: Holder, claim: Claim) -> bool:
        session = self.session
        if claim.epoch:
            return session.ref is not None and session.ref.epoch == claim.epoch
        if claim.session:
            return session.name == claim.session
        return connection in self.connections

    def takes_long(self) -> ServiceNotReady:
        name = self.session.id.name
        return ServiceNotReady(f"Transactional id {name!r}: {self.waits_for}; try again")

    def take_back(self, connection: Holder, before: TransactionalSession | None) -> None:
        """The session did not get the id: the connection returns to its session before, if any."""
        self.connections.pop(connection, None)
        if connection.sessions.get(self.session.id) is self.session:
            del connection.sessions[self.session.id]
            if before is not None and before is not self.session and not before.is_released:
                connection.sessions[self.session.id] = before
