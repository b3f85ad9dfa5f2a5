"""ZooKeeper's error codes as exceptions; names that Python or this package already uses end in
Error.
"""

from typing import Final

from managed_ledger.errors import ManagedLedgerError, StorageUnavailable


class ZooKeeperError(ManagedLedgerError):
    """Base class of ZooKeeper's errors and of connection errors."""

    code: int = -1


class ConnectionLoss(ZooKeeperError):
    """The connection broke before the answer: a change may or may not have been made."""

    code = -4


class TooManyWaiting(ZooKeeperError, StorageUnavailable):
    """Too many requests are waiting for a connection, so this one was neither queued nor sent."""


class SessionExpired(ZooKeeperError):
    """The session is over: its ephemeral nodes are gone or will be, and other clients may take over
    what it owned. Open a new client.
    """

    code = -112


class NoNode(ZooKeeperError):
    code = -101


class BadVersionError(ZooKeeperError):
    code = -103


class NodeExists(ZooKeeperError):
    code = -110


class NotEmpty(ZooKeeperError):
    """The node has children."""

    code = -111


class NoAuth(ZooKeeperError):
    code = -102


class RolledBack(ZooKeeperError):
    """Another operation of the same transaction failed."""

    code = -2


_BY_CODE: Final = {
    kind.code: kind
    for kind in (
        ConnectionLoss,
        SessionExpired,
        NoNode,
        BadVersionError,
        NodeExists,
        NotEmpty,
        NoAuth,
        RolledBack,
    )
}


def error_of(code: int, what: str) -> ZooKeeperError:
    kind = _BY_CODE.get(code, ZooKeeperError)
    name = f"error {code}" if kind is ZooKeeperError else kind.__name__
    return kind(f"ZooKeeper: {name}: {what}")
