"""Errors of bookies and of BookKeeper's metadata."""

from managed_ledger.errors import LedgerClosed, ManagedLedgerError, StorageUnavailable


class BookKeeperError(ManagedLedgerError):
    """Base class of errors of bookies and of their metadata."""


class BookieFailed(BookKeeperError, StorageUnavailable):
    """A bookie did not answer, or refused a request. Says nothing about whether it has an entry."""


class NotEnoughBookies(BookKeeperError, StorageUnavailable):
    """Too few bookies are available for a quorum; start bookies, then repeat."""


class LedgerFenced(LedgerClosed):
    """Another client is recovering the ledger or has closed it: this writer can never write to it
    again.
    """


class NoLedgerNumber(BookKeeperError, StorageUnavailable):
    """No number for a new ledger has arrived from ZooKeeper yet; retry a moment later."""


class RecoveryFailed(BookKeeperError, StorageUnavailable):
    """The end of a ledger could not be determined. It stays in recovery; retry to continue."""


class BadLedgerMetadata(BookKeeperError):
    """The metadata of a ledger is in a format that this version cannot read."""
