"""What can go wrong between this process and the bookies."""

from managed_ledger.errors import LedgerClosed, ManagedLedgerError, StorageUnavailable


class BookKeeperError(ManagedLedgerError):
    """Base of everything that bookies and their metadata cause."""


class BookieFailed(BookKeeperError, StorageUnavailable):
    """A bookie did not answer, or refused for a reason of its own. It says nothing about whether it
    has an entry.
    """


class NotEnoughBookies(BookKeeperError, StorageUnavailable):
    """Too few bookies are available for a quorum; start bookies, then repeat."""


class LedgerFenced(LedgerClosed):
    """Another client recovers the ledger or has closed it: this writer has lost it for good."""


class NoLedgerNumber(BookKeeperError, StorageUnavailable):
    """ZooKeeper has not given enough numbers for new ledgers; repeat it a moment later."""


class RecoveryFailed(BookKeeperError, StorageUnavailable):
    """The end of a ledger could not be settled; it stays in recovery, and a repetition goes on."""


class BadLedgerMetadata(BookKeeperError):
    """The metadata of a ledger is in a format that this version does not read."""
