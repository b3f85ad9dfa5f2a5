"""The transaction that holds readers back, and how far readers of committed messages get.

    last stable position   readers of committed messages stop here
    blocked                entries after it that would be delivered; not markers or aborted ones

A topic's oldest open transaction blocks all entries after its first one, of any producer.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.expiry import waiting_up_to
from pybroker.broker.subscriptions.isolation import Isolation
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator

Stats = dict[str, Any]
PARTICIPANTS_SHOWN: Final = 10  # of one transaction, which may have tens of thousands

Coordinators = Mapping[int, TransactionCoordinator]


class Blocked(NamedTuple):
    entries: int
    topic: Topic


def blocked_entries(topic: Topic, after: Position | None = None) -> int:
    """The number of blocked entries after the last stable position, or after `after` if that is
    later.
    """
    end, stable = topic.ledger.last_confirmed, topic.max_read_position
    after = stable if after is None else max(stable, after)
    if after >= end:
        return 0
    return max(0, topic.ledger.count_between(after, end) - topic.hidden.count(after, end))


def backlog_parts(subscription: Subscription, topic: Topic, backlog: int) -> Stats:
    """How much of the backlog may be read now, and how much waits for the end of a transaction."""
    committed, stable = backlog, topic.max_read_position
    if stable < topic.ledger.last_confirmed:
        committed = min(backlog, waiting_up_to(subscription, stable))
    waits = subscription.isolation is Isolation.READ_COMMITTED
    return {
        "isolationLevel": subscription.isolation.value,
        "lastStablePosition": str(subscription.reader.limit),
        "committedBacklog": committed,
        "blockedBacklog": backlog - committed if waits else 0,
    }


def of_topic(topic: Topic) -> Stats:
    return {
        "topic": str(topic.name),
        "lastStablePosition": str(topic.max_read_position),
        "lastConfirmedEntry": str(topic.ledger.last_confirmed),
        "blockedEntries": blocked_entries(topic),
        "openTransactions": topic.buffer.open_count,
    }


def open_on(topic: Topic, most: int, coordinators: Coordinators, now_ms: int) -> Iterator[Stats]:
    """Up to `most` of the topic's open transactions, the blocking one first."""
    for txn_id, first, began_ms in topic.buffer.ongoing(most):
        after = None if first is None else first.before
        yield {
            "txnId": str(txn_id),
            "startPosition": None if first is None else str(first),
            "blockedEntries": blocked_entries(topic, after),
            **_known(txn_id, began_ms, coordinators.get(txn_id.most), now_ms),
        }


def _known(
    txn_id: TxnId, began_ms: int, coordinator: TransactionCoordinator | None, now_ms: int
) -> Stats:
    """What the coordinator knows of the transaction; unknown while the coordinator is being
    reopened.
    """
    transaction = None if coordinator is None else coordinator.metadata(txn_id)
    if transaction is None:
        return {
            "status": "UNKNOWN",
            "owner": None,
            "label": None,
            "openTimestamp": began_ms,
            "ageMs": max(0, now_ms - began_ms),
            "timeLeftMs": None,
            "topics": [],
            "topicCount": None,
            "subscriptionCount": None,
        }
    return {
        "status": transaction.status.name,
        "owner": transaction.owner,
        "label": transaction.label,
        "openTimestamp": transaction.opened_at_ms,
        "ageMs": max(0, now_ms - transaction.opened_at_ms),
        "timeLeftMs": transaction.left_ms(now_ms),
        "topics": list(islice(transaction.partitions, PARTICIPANTS_SHOWN)),
        "topicCount": len(transaction.partitions),
        "subscriptionCount": len(transaction.subscriptions),
    }
