"""Transactions that ended recently on this broker, for the admin API: a bounded ring in memory.

Each is packed into a few hundred bytes. As objects, a thousand of them take megabytes, and push
what the broker works on out of the processor's caches: then a transaction costs a tenth more.

Outcomes, which the protocol needs, are stored separately.
"""

import marshal
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock
from pybroker.transaction.buffer.buffer_stats import Marked
from pybroker.transaction.coordinator.ends.timeline import DecidedBy, DecidedEnd
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef, TransactionalId
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
        self._ended: deque[bytes] = deque(maxlen=MOST_ENDED)

    def note(
        self, transaction: TransactionMetadata, action: TxnAction, reason: str, at_ms: int
    ) -> None:
        topics, subscriptions = transaction.partitions, transaction.subscriptions
        counts = len(topics), len(subscriptions)
        if max(counts) > MOST_PARTICIPANTS:
            topics = dict(islice(topics.items(), MOST_PARTICIPANTS))
            subscriptions = dict(islice(subscriptions.items(), MOST_PARTICIPANTS))
        leader, session, group = transaction.promised_to, transaction.session, transaction.group
        packed = (
            (at_ms, *counts, reason, action.value),
            tuple(transaction.txn_id),
            (transaction.timeout_ms, transaction.opened_at_ms, transaction.owner),
            (topics, subscriptions, transaction.namespace, transaction.client, transaction.label),
            None if leader is None else tuple(leader),
            _first_of(group) if group else (),
            None if session is None else (*session.id, session.epoch),
            None if transaction.end is None else _plain(transaction.end),
        )
        self._ended.append(marshal.dumps(packed))

    def __iter__(self) -> Iterator[EndedTransaction]:
        """The transactions that ended within the last hour, latest first."""
        since_ms = self._clock.now_ms() - KEPT_MS
        while self._ended and _unpacked(self._ended[0]).ended_at_ms < since_ms:
            self._ended.popleft()
        return map(_unpacked, reversed(list(self._ended)))

    def find(self, txn_id: TxnId) -> EndedTransaction | None:
        return next((each for each in self if each.transaction.txn_id == txn_id), None)


def _first_of(group: Iterable[TxnId]) -> list[tuple[int, ...]]:
    return [tuple(each) for each in islice(sorted(group), MOST_PARTICIPANTS)]


def _plain(end: DecidedEnd) -> tuple[Any, ...]:
    """As `marshal` takes it. One function, because it runs for each transaction."""
    followed = []
    for participant, at_ms, result in end.followed:
        mark = None
        if isinstance(result, Marked):
            first, marker = result
            mark = None if first is None else tuple(first), tuple(marker)
        followed.append((tuple(participant), at_ms, mark))
    return end.at_ms, end.by.value, followed


def _unpacked(packed: bytes) -> EndedTransaction:
    how, txn_id, opened, participants, leader, group, session, end = marshal.loads(packed)
    at_ms, topic_count, subscription_count, reason, action = how
    timeout_ms, opened_at_ms, owner = opened
    topics, subscriptions, namespace, client, label = participants
    status = ENDED_STATUS[TxnAction(action)]
    transaction = TransactionMetadata(
        TxnId(*txn_id),
        timeout_ms,
        opened_at_ms,
        owner,
        status=status,
        partitions=topics,
        subscriptions=subscriptions,
        promised_to=None if leader is None else TxnId(*leader),
        group=frozenset(TxnId(*each) for each in group),
        namespace=namespace,
        session=None if session is None else _session(*session),
        client=client,
        label=label,
        end=None if end is None else _end(*end),
    )
    return EndedTransaction(transaction, status, at_ms, topic_count, subscription_count, reason)


def _session(owner: str | None, name: str, epoch: int) -> SessionRef:
    return SessionRef(TransactionalId(owner, name), epoch)


def _end(at_ms: int | None, by: str, followed: list[Any]) -> DecidedEnd:
    end = DecidedEnd()
    end.at_ms, end.by = at_ms, DecidedBy(by)
    end.followed = [
        (each, ms, None if mark is None else _mark(*mark)) for each, ms, mark in followed
    ]
    return end


def _mark(first: tuple[int, int] | None, marker: tuple[int, int]) -> Marked:
    return Marked(None if first is None else Position(*first), Position(*marker))
