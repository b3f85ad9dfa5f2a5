"""Chooses the dispatcher for a subscription's type, and the reader for its isolation."""

from collections.abc import Callable

from managed_ledger.cursor import ManagedCursor
from pybroker.broker.dispatch.compacted_reader import CompactedReader
from pybroker.broker.dispatch.delayed import Delays
from pybroker.broker.dispatch.entry_fetcher import OnDamage
from pybroker.broker.dispatch.entry_reader import EntryReader, ReadableTopic
from pybroker.broker.dispatch.key_shared import KeySharedDispatcher
from pybroker.broker.dispatch.redelivery import RedeliveryCounts
from pybroker.broker.dispatch.shared import SharedDispatcher, UnackedLimits
from pybroker.broker.dispatch.single import SingleActiveDispatcher
from pybroker.broker.dispatch.uncommitted_reader import OnSettled, UncommittedReader
from pybroker.broker.subscriptions.consumer import Consumer, SubscriptionType
from pybroker.broker.subscriptions.isolation import Isolation

Dispatcher = SingleActiveDispatcher | SharedDispatcher | KeySharedDispatcher


def dispatcher_of(
    kind: SubscriptionType,
    first: Consumer,
    partition: int,
    reader: EntryReader,
    counts: RedeliveryCounts,
    limits: UnackedLimits,
    delays: Delays,
    resume: Callable[[], None],
    compacted: Callable[[], CompactedReader],
    consistent: bool,
) -> Dispatcher:
    """The dispatcher for the `first` consumer. `consistent`: Key_Shared splits slots by a hash
    ring.
    """
    if kind.single_active:
        failover = kind is SubscriptionType.FAILOVER
        return SingleActiveDispatcher(reader, failover, partition, compacted)
    if kind is SubscriptionType.SHARED:
        return SharedDispatcher(reader, counts, limits, delays, resume)
    policy = first.request.key_shared
    return KeySharedDispatcher(reader, counts, limits, delays, resume, policy, consistent)


def reader_of(
    isolation: Isolation,
    topic: ReadableTopic,
    cursor: ManagedCursor,
    resume: Callable[[], None],
    on_damage: OnDamage,
    on_settled: OnSettled,
) -> EntryReader:
    if isolation is Isolation.READ_UNCOMMITTED:
        return UncommittedReader(topic, cursor, resume, on_damage, on_settled)
    return EntryReader(topic, cursor, resume, on_damage)
