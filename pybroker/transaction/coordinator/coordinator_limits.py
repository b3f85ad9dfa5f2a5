"""The limits of a coordinator."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pybroker.base.runtime import do_nothing
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata


def _anybody(transaction: TransactionMetadata, namespace: str) -> None:
    """Admits every transaction to every namespace."""


@dataclass(frozen=True, slots=True)
class CoordinatorLimits:
    max_active: int
    max_timeout_ms: int
    outcome_retention_ms: int
    snapshot_entries: int  # log records between two snapshots, at least
    max_participants: int = 0  # topics and subscriptions of a transaction; 0: no limit
    # Raises TooManyRequests or NotAllowed if the transaction may not take part in the namespace.
    admit: Callable[[TransactionMetadata, str], None] = _anybody
    spans: Callable[[], None] = do_nothing  # called for each transaction that spans a namespace
    # Called with the transactions of a log that was opened, and the time.
    replayed: Callable[[Iterable[TransactionMetadata], int], None] = do_nothing
    max_prepared_age_ms: int = 0  # 0: no prepared transaction is too old
    abort_old_prepared: bool = False  # otherwise there is only a warning
