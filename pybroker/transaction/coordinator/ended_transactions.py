"""Transactions that ended recently on this broker, for the admin API: a bounded ring in memory.

Outcomes, which the protocol needs, are stored separately.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.txn_status import ENDED_STATUS, TxnAction, TxnStatus

MOST_ENDED: Final = 1000
MOST_PARTICIPANTS: Final = 50  # topics, and as many subscriptions
KEPT_MS: Final = 3_600_000


class EndedTransaction(NamedTuple):
    transaction: TransactionMetadata  # with its first participants only
    status: TxnStatus
    ended_at_ms: int
    topic_count: int
    subscription_count: int
    reason: str  # for an abort that its owner did not request


class EndedTransactions:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended: deque[EndedTransaction] = deque(maxlen=MOST_ENDED)

    def note(
        self, transaction: TransactionMetadata, action: TxnAction, reason: str, at_ms: int
    ) -> None:
        """`transaction` must not change any more. Its lists of participants are shortened."""
        topics, subscriptions = len(transaction.partitions), len(transaction.subscriptions)
        if topics > MOST_PARTICIPANTS or subscriptions > MOST_PARTICIPANTS:
            _shorten(transaction)
        if len(transaction.group) > MOST_PARTICIPANTS:
            transaction.group = frozenset(islice(sorted(transaction.group), MOST_PARTICIPANTS))
        status = ENDED_STATUS[action]
        self._ended.append(
            EndedTransaction(transaction, status, at_ms, topics, subscriptions, reason)
        )

    def __iter__(self) -> Iterator[EndedTransaction]:
        """The transactions that ended within the last hour, latest first."""
        since_ms = self._clock.now_ms() - KEPT_MS
        while self._ended and self._ended[0].ended_at_ms < since_ms:
            self._ended.popleft()
        return reversed(list(self._ended))

    def find(self, txn_id: TxnId) -> EndedTransaction | None:
        return next((each for each in self if each.transaction.txn_id == txn_id), None)


def _shorten(transaction: TransactionMetadata) -> None:
    transaction.partitions = dict(islice(transaction.partitions.items(), MOST_PARTICIPANTS))
    transaction.subscriptions = dict(islice(transaction.subscriptions.items(), MOST_PARTICIPANTS))
    transaction.namespaces = {}
