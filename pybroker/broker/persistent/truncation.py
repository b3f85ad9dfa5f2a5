"""Truncates a topic: only messages that open transactions hold remain.

Source: Apache Pulsar's ManagedLedgerImpl.asyncTruncate, which also moves the cursors of
deduplication and of compaction to the end.
"""

from typing import Final

from managed_ledger.position import Position
from managed_ledger.trim import Retention
from pybroker.broker.persistent.topic import Topic

_NOTHING_KEPT: Final = Retention()


async def store_what_the_log_records(topic: Topic) -> None:
    """Makes durable elsewhere what the topic needs of its log, which is about to lose ledgers.
    Raises ManagedLedgerError.
    """
    await topic.buffer.forget_ended()
    if topic.deduplication is not None:
        await topic.deduplication.catch_up()
    if topic.view is not None:
        await topic.view.catch_up()


async def truncate(topic: Topic) -> None:
    """Acknowledge everything on every subscription, and delete it regardless of retention.

    The compacted log stays; uncompacted messages are deleted with the rest. Raises Conflict while a
    compaction runs, ServiceNotReady, ManagedLedgerError.
    """
    ledger, compacted = topic.ledger, topic.compacted
    if compacted is not None:
        compacted.check_not_running()
    for subscription in topic.each_subscription():
        await subscription.skip_to(topic.max_read_position)  # also read_uncommitted subscriptions
    await ledger.roll_over()
    await store_what_the_log_records(topic)
    if (compacted := topic.compacted) is not None:
        compacted.give_up_before(Position(ledger.ledgers()[-1].ledger_id, 0))
    await ledger.trim(_NOTHING_KEPT)
