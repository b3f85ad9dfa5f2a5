"""What can go wrong between this process and the bookies."""

from managed_ledger.errors import LedgerClosed, ManagedLedgerError, StorageUnavailable


class BookKeeperError(ManagedLedgerError):
    """Base of errors of bookies and of their metadata."""


class BookieFailed(BookKeeperError, StorageUnavailable):
    """A bookie did not answer, or refused for its own reasons. This does not tell whether it has an
    entry.
    """


class NotEnoughBookies(BookKeeperError, StorageUnavailable):
    """Too few bookies are available for a quorum; start bookies, then repeat."""


class LedgerFenced(LedgerClosed):
    """Another client is recovering the ledger or has closed it: this writer can never write to it
    again.
    """


class NoLedgerNumber(BookKeeperError, StorageUnavailable):
    """Too few numbers for new ledgers have arrived from ZooKeeper; repeat it a moment later."""


class RecoveryFailed(BookKeeperError, StorageUnavailable):
    """The end of a ledger could not be determined; it stays in recovery: repeat it to continue."""


class BadLedgerMetadata(BookKeeperError):
    """The metadata of a ledger is in a format that this version does not read."""
