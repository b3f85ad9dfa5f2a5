"""Migrates pending-ack logs from the time when their names were not unique.

The log of topic T and subscription S was `<T>-<quoted S>__transaction_pending_ack`. So topic
"orders" with subscription "eu-billing" and topic "orders-eu" with subscription "billing" shared a
log. A ledger id always belongs to the same topic, so the ledger ids in the records tell the
subscriptions apart.

Apache Pulsar also names its logs like that, without quoting; `take_over` is for these.

At start, before any log is used, each subscription that shares an old log gets its records in a log
of its own; then the old log is deleted. While the old log exists, the new ones are ignored: a
migration cut short by a crash starts again.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import filterfalse
from urllib.parse import quote, unquote

from managed_ledger.factory import ManagedLedgerFactory
from pybroker.base.names import (
    PENDING_ACK_SUFFIX,
    TopicName,
    TxnId,
    belongs_to_a_topic,
    foreign_pending_ack_log,
)
from pybroker.transaction.pending_acks.records import AckRecord, EndRecord, Record
from pybroker.transaction.pending_acks.store import PendingAckStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Subscription:
    topic: TopicName
    name: str


async def migrate_pending_ack_logs(factory: ManagedLedgerFactory) -> None:
    """Raises ManagedLedgerError; then retry."""
    for old_name in filterfalse(belongs_to_a_topic, factory.names(suffix=PENDING_ACK_SUFFIX)):
        records = await _records(factory, old_name)
        owners = list(_owners(factory, old_name))
        for owner in owners:
            own = _of_topic(records, factory.ledger_ids(owner.topic.ledger_name))
            await _write_anew(factory, owner, own)
        await factory.delete(old_name)
        log.info(
            "%s: moved %d records to the logs of %d subscriptions",
            old_name,
            len(records),
            len(owners),
        )


async def _records(factory: ManagedLedgerFactory, old_name: str) -> list[Record]:
    store = await PendingAckStore.open_log(factory, old_name)
    records: list[Record] = []
    await store.replay(records.append)
    return records


def _owners(factory: ManagedLedgerFactory, old_name: str) -> Iterator[_Subscription]:
    """Every existing subscription whose log had this name."""
    parts = old_name.removesuffix(PENDING_ACK_SUFFIX).split("-")
    for index in range(1, len(parts)):
        ledger_name, quoted = "-".join(parts[:index]), "-".join(parts[index:])
        subscription = unquote(quoted)
        if quote(subscription, safe="") == quoted and factory.has_cursor(ledger_name, subscription):
            yield _Subscription(TopicName.of_ledger(ledger_name), subscription)
        elif quoted != subscription and factory.has_cursor(ledger_name, quoted):
            yield _Subscription(TopicName.of_ledger(ledger_name), quoted)


def _of_topic(records: Sequence[Record], ledger_ids: Sequence[int]) -> list[Record]:
    """The acknowledgements of the topic's entries, and the ends of the transactions that made
    them.
    """
    kept, ids, acknowledging = list[Record](), set(ledger_ids), set[TxnId]()
    for record in records:
        if isinstance(record, AckRecord):
            acks = [ack for ack in record.acks if ack.position.ledger_id in ids]
            if acks:
                acknowledging.add(record.txn_id)
                kept.append(replace(record, acks=acks))
        elif isinstance(record, EndRecord) and record.txn_id in acknowledging:
            kept.append(record)
    return kept


async def _write_anew(
    factory: ManagedLedgerFactory, owner: _Subscription, records: Sequence[Record]
) -> None:
    store = await PendingAckStore.open(factory, owner.topic, owner.name)
    await store.replace_past(records, _nothing)
    await store.close()


async def _nothing() -> None:
    """The log is new: nothing outside it must be made durable."""


async def take_over(
    factory: ManagedLedgerFactory, topic: TopicName, subscription: str, store: PendingAckStore
) -> None:
    """Append the records that Apache Pulsar's broker left for this subscription to the
    subscription's own log, then delete Apache's. A crash in between repeats records, which does no
    harm. Raises ManagedLedgerError.
    """
    name = foreign_pending_ack_log(topic, subscription)
    if not factory.exists(name):
        return
    this = _Subscription(topic, subscription)
    if others := [each for each in _owners(factory, name) if each != this]:
        log.error(
            "%s is the log of several subscriptions (%s; %s on %s): acknowledgements of "
            "transactions that were open are given up, and their messages are redelivered",
            name,
            "; ".join(f"{each.name} on {each.topic}" for each in others),
            subscription,
            topic,
        )
        return
    records = await _records(factory, name)
    own = _of_topic(records, factory.ledger_ids(topic.ledger_name))
    await store.append_durably(own)
    await factory.delete(name)
    log.info("%s: took over %d of %d records", name, len(own), len(records))
