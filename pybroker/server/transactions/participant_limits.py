"""Limits the topics and subscriptions that join transactions when clients use them.

A refusal is NotAllowed, which official clients report to the application. After TooManyRequests
they would repeat a SEND at once, forever.
"""

from pybroker.base.errors import NotAllowed, TooManyRequests
from pybroker.base.names import TxnId
from pybroker.server.connections.connection import Connection
from pybroker.server.services import Services
from pybroker.server.transactions.transaction_share import (
    excess_of_connection,
    excess_of_principal,
    is_exempt,
)
from pybroker.transaction.coordinator.joining import Adding, Joined


class ConnectionJoins:
    """Implements Joiner for the SENDs and ACKs of a connection."""

    __slots__ = ("_session",)

    def __init__(self, session: Connection) -> None:
        self._session = session

    @property
    def principal(self) -> str | None:
        return self._session.principal

    @property
    def client(self) -> str:
        return self._session.owner or self._session.address

    def takes(self, txn_id: TxnId) -> None:
        session = self._session
        if not is_exempt(session):
            _refuse(excess_of_connection(session, 1))
            if session.owner is not None:
                _refuse(excess_of_principal(session.services, session.owner, 1))
        session.added.add(txn_id, 1)

    def add(self, adding: Adding) -> Joined:
        return _added(self._session.services, adding)


class BrokerJoins:
    """Implements Joiner for requests of another broker. That broker applies the limit per
    connection; this one applies the limit per principal.
    """

    client = ""

    def __init__(self, services: Services, principal: str | None) -> None:
        self.principal = principal
        self._services = services

    def takes(self, txn_id: TxnId) -> None:
        if self.principal is not None:
            _refuse(excess_of_principal(self._services, self.principal, 1))

    def add(self, adding: Adding) -> Joined:
        return _added(self._services, adding)


def _refuse(excess: str | None) -> None:
    if excess is not None:
        raise NotAllowed(excess)


def _added(services: Services, adding: Adding) -> Joined:
    try:
        return adding()
    except TooManyRequests as full:
        services.counts.refused["maxActiveTransactionsPerNamespace"] += 1
        raise NotAllowed(str(full)) from full
