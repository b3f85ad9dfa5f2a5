"""DeleteRecords: the log begins at a later offset, for whoever reads it.

The offset is a property of the managed ledger, durable before anything is deleted. Ledgers that are
wholly before it go at once, whatever the retention; subscriptions of Pulsar's clients move on to
it. What open transactions, compaction or the snapshots of producers need stays until it is free.
"""

from contextlib import suppress
from typing import Final

from managed_ledger.position import Position
from managed_ledger.trim import Retention
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.persistent.truncation import store_what_the_log_records
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.log.offsets import LOG_START
from pybroker.kafka.log.partition_log import PartitionLog

TO_THE_END: Final = -1
_NOTHING_KEPT: Final = Retention()


async def delete_records(log: PartitionLog, before: int) -> int:
    """Returns where the log begins now. Messages of open transactions, and those behind them, are
    not deleted. Raises KafkaError, ServiceNotReady, ManagedLedgerError.
    """
    end = await log.end_offset(committed_only=True)
    before = end if before == TO_THE_END else before
    if not 0 <= before <= end:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{log.topic.name} may be deleted up to offset {end}, not {before}",
        )
    if before <= await log.offsets.start():
        return await log.offsets.start()
    first = (await log.offsets.find(before)).position
    ledger = log.topic.ledger
    if before > int(ledger.properties_to_come.get(LOG_START, "0")):
        await ledger.set_property(LOG_START, str(before))
    await _free(log.topic, first)
    return await log.offsets.start()


async def _free(topic: Topic, first: Position) -> None:
    """Delete the ledgers before that of the entry at `first`, which may not be there yet."""
    ledger, last = topic.ledger, topic.ledger.previous_position(first)
    for subscription in topic.each_subscription():
        if subscription.durable and subscription.cursor.mark_delete_position < last:
            await subscription.skip_to(last)
    if not ledger.has_entry(first):
        await ledger.roll_over()
    await store_what_the_log_records(topic)
    if topic.compacted is not None:
        with suppress(Conflict):  # a compaction is reading them
            topic.compacted.give_up_before(first)

    def everything_else() -> Position:
        return first

    ledger.trimmer.keep(everything_else)
    try:
        await ledger.trim(_NOTHING_KEPT)
    finally:
        ledger.trimmer.keep_no_longer(everything_else)
