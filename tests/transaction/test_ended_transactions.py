"""What the ring of ended transactions keeps of each, and in how little memory."""

import gc

from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.base.runtime import SystemClock
from pybroker.transaction.buffer.buffer_stats import Marked
from pybroker.transaction.coordinator.ends.ended_transactions import MOST_ENDED, EndedTransactions
from pybroker.transaction.coordinator.ends.participants import Participant
from pybroker.transaction.coordinator.ends.timeline import DecidedBy, DecidedEnd
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef, TransactionalId
from pybroker.transaction.txn_status import TxnAction, TxnStatus

TXN, LEADER, MEMBER = TxnId(1, 7), TxnId(0, 3), TxnId(2, 9)
ORDERS = "persistent://public/default/orders"


def transaction() -> TransactionMetadata:
    made = TransactionMetadata(
        TXN,
        timeout_ms=600_000,
        opened_at_ms=1_000,
        owner="ann",
        status=TxnStatus.ABORTED,
        partitions={ORDERS: 1_001},
        subscriptions={(ORDERS, "sub"): None},
        promised_to=LEADER,
        group=frozenset({MEMBER}),
        namespace="public/default",
        session=SessionRef(TransactionalId("ann", "job"), 4),
        client=("127.0.0.1:5", "Java"),
        end=DecidedEnd(),
    )
    assert made.end is not None
    made.end.at_ms, made.end.by = 1_005, DecidedBy.TIMEOUT
    made.end.note(Participant(ORDERS), 1_006, Marked(Position(3, 1), Position(3, 4)))
    made.end.note(Participant(ORDERS, "sub"), 1_007, None)
    return made


def test_all_of_a_transaction_that_is_displayed_is_kept() -> None:
    noted, clock = transaction(), SystemClock()
    ended = EndedTransactions(clock)
    now_ms = clock.now_ms()
    ended.note(noted, TxnAction.ABORT, "it was left", now_ms)
    found = ended.find(TXN)
    assert found is not None and found.transaction.end is not None and noted.end is not None
    kept, end = found.transaction, found.transaction.end
    assert found[1:] == (TxnStatus.ABORTED, now_ms, 1, 1, "it was left")
    assert (end.at_ms, end.by, end.followed) == (noted.end.at_ms, noted.end.by, noted.end.followed)
    assert isinstance(end.followed[0][2], Marked)
    kept.end = noted.end = None
    assert kept == noted


def test_ended_transactions_are_no_objects_for_the_garbage_collector_to_visit() -> None:
    ended = EndedTransactions(SystemClock())
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(MOST_ENDED):
        ended.note(transaction(), TxnAction.ABORT, "", SystemClock().now_ms())
    gc.collect()
    assert len(gc.get_objects()) - before < MOST_ENDED // 10
    assert len(list(ended)) == MOST_ENDED
