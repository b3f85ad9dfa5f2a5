"""ZooKeeper's error codes as exceptions; names end in Error where Python or a package has them."""

from typing import Final

from managed_ledger.errors import ManagedLedgerError, StorageUnavailable


class ZooKeeperError(ManagedLedgerError):
    """Base of ZooKeeper's errors and of connection errors."""

    code: int = -1


class ConnectionLoss(ZooKeeperError):
    """The connection broke before the answer: a change may have been made or not."""

    code = -4


class TooManyWaiting(ZooKeeperError, StorageUnavailable):
    """Too many requests wait for a connection, so this one was not queued or sent."""


class SessionExpired(ZooKeeperError):
    """The session is over: its ephemeral nodes are gone or will be, and others may take over what
    it owned. Open a new client.
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
