"""The states of a transaction, their transitions, and the look-up of outcomes.

Only a coordinator changes a status. Transaction buffers and pending acknowledgements look it up
through `TransactionOutcomes`, so they act on decisions, never on guesses.
"""

import enum
from typing import Final, Protocol

from pybroker.base.errors import (
    InvalidTxnStatus,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from pybroker.base.names import TxnId


class TxnStatus(enum.IntEnum):
    OPEN = 0
    COMMITTING = 1
    COMMITTED = 2
    ABORTING = 3
    ABORTED = 4
    PREPARED = 5  # undecided, and only the owner or an administrator decides: see `preparing`


class TxnAction(enum.IntEnum):
    """The values are those of the wire protocol's TxnAction."""

    COMMIT = 0
    ABORT = 1


TXN_TRANSITIONS: Final = {
    TxnStatus.OPEN: {TxnStatus.PREPARED, TxnStatus.COMMITTING, TxnStatus.ABORTING},
    # A repeated PREPARE is answered as the first one.
    TxnStatus.PREPARED: {TxnStatus.PREPARED, TxnStatus.COMMITTING, TxnStatus.ABORTING},
    # A repeated END joins the end in progress.
    TxnStatus.COMMITTING: {TxnStatus.COMMITTING, TxnStatus.COMMITTED},
    TxnStatus.COMMITTED: set(),
    TxnStatus.ABORTING: {TxnStatus.ABORTING, TxnStatus.ABORTED},
    TxnStatus.ABORTED: set(),
}
UNDECIDED: Final = frozenset((TxnStatus.OPEN, TxnStatus.PREPARED))
ENDING_STATUS: Final = {
    TxnAction.COMMIT: TxnStatus.COMMITTING,
    TxnAction.ABORT: TxnStatus.ABORTING,
}
ENDED_STATUS: Final = {
    TxnAction.COMMIT: TxnStatus.COMMITTED,
    TxnAction.ABORT: TxnStatus.ABORTED,
}
ACTION_OF_STATUS: Final = {
    TxnStatus.COMMITTING: TxnAction.COMMIT,
    TxnStatus.COMMITTED: TxnAction.COMMIT,
    TxnStatus.ABORTING: TxnAction.ABORT,
    TxnStatus.ABORTED: TxnAction.ABORT,
}


class TransactionOutcomes(Protocol):
    """The coordinators' knowledge of transactions, for participants. Synchronous.

    Every method raises TransactionCoordinatorNotFound while the transaction's coordinator has not
    recovered, or is on another broker and has not answered: "not known yet" must never be mistaken
    for "does not exist".
    """

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        """None if it never existed, or if it ended longer ago than outcomes are retained."""
        ...

    def has_partition(self, txn_id: TxnId, topic: str) -> bool: ...

    def has_subscription(self, txn_id: TxnId, topic: str, subscription: str) -> bool: ...

    def why_aborted(self, txn_id: TxnId) -> str:
        """The reason, as a clause. Empty if the owner requested the abort, or if the reason is no
        longer known.
        """
        ...


class _NothingBegun:
    """The outcomes of a coordinator that has begun no transaction."""

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        return None

    def has_partition(self, txn_id: TxnId, topic: str) -> bool:
        return False

    def has_subscription(self, txn_id: TxnId, topic: str, subscription: str) -> bool:
        return False

    def why_aborted(self, txn_id: TxnId) -> str:
        return ""


NOTHING_BEGUN: Final = _NothingBegun()


def coordinator_not_ready(coordinator_id: int) -> TransactionCoordinatorNotFound:
    return TransactionCoordinatorNotFound(
        f"Transaction coordinator {coordinator_id} is not served here at the moment: reconnect "
        "and retry"
    )


def require_open(outcomes: TransactionOutcomes, txn_id: TxnId) -> None:
    """Raises InvalidTxnStatus if it has ended or is ending, TransactionNotFound if it never existed
    or ended long ago, TransactionCoordinatorNotFound if its status is not known here.
    """
    status = outcomes.status(txn_id)
    if status is TxnStatus.OPEN:
        return
    if status is None:
        raise TransactionNotFound(
            f"Transaction {txn_id} does not exist, or ended too long ago: begin a new one"
        )
    why = outcomes.why_aborted(txn_id)
    raise InvalidTxnStatus(
        f"Transaction {txn_id} is {status.name}, not OPEN: begin a new one and repeat its work"
        + (f"; {why}" if why else "")
    )


def require_partition(outcomes: TransactionOutcomes, txn_id: TxnId, topic: str) -> None:
    """Raises InvalidTxnStatus if the topic was not added, TransactionCoordinatorNotFound if that is
    not known here.
    """
    if not outcomes.has_partition(txn_id, topic):
        raise InvalidTxnStatus(
            f"Transaction {txn_id} does not write to {topic}: add the partition to it before "
            "sending"
        )


def require_decided(outcomes: TransactionOutcomes, txn_id: TxnId, action: TxnAction) -> bool:
    """Check that the coordinator decided on `action`. True while the transaction is being ended;
    False if it has ended. Raises TransactionNotFound, InvalidTxnStatus (open, or the opposite was
    decided), TransactionCoordinatorNotFound.
    """
    status = outcomes.status(txn_id)
    if status is None:
        raise TransactionNotFound(
            f"Transaction {txn_id} does not exist, or ended too long ago: there is nothing to end"
        )
    if ACTION_OF_STATUS.get(status) is not action:
        raise InvalidTxnStatus(
            f"Transaction {txn_id} is {status.name}: its coordinator did not decide to "
            f"{action.name} it; end it with END_TXN"
        )
    return status is ENDING_STATUS[action]


def action_to_settle(outcomes: TransactionOutcomes, txn_id: TxnId) -> TxnAction | None:
    """How a participant ends a transaction that it still holds. None: it must wait until the
    coordinator tells it.

    A transaction that its coordinator does not know cannot have been committed: a coordinator keeps
    a transaction until every participant has ended it. Raises TransactionCoordinatorNotFound.
    Source: KIP-98, "correlated hard failures".
    """
    status = outcomes.status(txn_id)
    if status is None:
        return TxnAction.ABORT
    if status in (TxnStatus.COMMITTED, TxnStatus.ABORTED):
        return ACTION_OF_STATUS[status]
    return None
