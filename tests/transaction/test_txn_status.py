"""States and their table; who may ask for an outcome."""

import pytest

from pybroker.base.errors import InvalidTxnStatus, TransactionNotFound
from pybroker.base.names import TxnId
from pybroker.transaction.txn_status import (
    ACTION_OF_STATUS,
    ENDED_STATUS,
    ENDING_STATUS,
    TXN_TRANSITIONS,
    TxnAction,
    TxnStatus,
    action_to_settle,
    require_open,
)


class Outcome:
    def __init__(self, status: TxnStatus | None) -> None:
        self._status = status

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        return self._status

    def has_partition(self, txn_id: TxnId, topic: str) -> bool:
        return True

    def why_aborted(self, txn_id: TxnId) -> str:
        return ""

    def has_subscription(self, txn_id: TxnId, topic: str, subscription: str) -> bool:
        return True


def test_the_table_is_total() -> None:
    assert set(TXN_TRANSITIONS) == set(TxnStatus)


@pytest.mark.parametrize("action", TxnAction)
def test_an_action_leads_from_open_to_its_end(action: TxnAction) -> None:
    assert ENDING_STATUS[action] in TXN_TRANSITIONS[TxnStatus.OPEN]
    assert ENDED_STATUS[action] in TXN_TRANSITIONS[ENDING_STATUS[action]]
    assert TXN_TRANSITIONS[ENDED_STATUS[action]] == set()
    assert ACTION_OF_STATUS[ENDED_STATUS[action]] is action


def test_only_an_open_transaction_takes_messages() -> None:
    require_open(Outcome(TxnStatus.OPEN), TxnId(0, 1))
    for status in set(TxnStatus) - {TxnStatus.OPEN}:
        with pytest.raises(InvalidTxnStatus, match=status.name):
            require_open(Outcome(status), TxnId(0, 1))
    with pytest.raises(TransactionNotFound):
        require_open(Outcome(None), TxnId(0, 1))


@pytest.mark.parametrize(
    ("status", "action"),
    [
        (None, TxnAction.ABORT),
        (TxnStatus.OPEN, None),
        (TxnStatus.PREPARED, None),
        (TxnStatus.COMMITTING, None),
        (TxnStatus.ABORTING, None),
        (TxnStatus.COMMITTED, TxnAction.COMMIT),
        (TxnStatus.ABORTED, TxnAction.ABORT),
    ],
)
def test_a_participant_settles_only_what_is_over(
    status: TxnStatus | None, action: TxnAction | None
) -> None:
    assert action_to_settle(Outcome(status), TxnId(0, 1)) is action
