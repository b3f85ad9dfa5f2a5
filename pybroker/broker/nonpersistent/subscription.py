"""A subscription of a non-persistent topic: its consumers, without a cursor.

Acknowledgements, redelivery and seeks are accepted without effect, as in Apache Pulsar: no messages
are stored.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final, Protocol

from managed_ledger.position import EARLIEST, Position
from pybroker.base.errors import ServiceNotReady, TransactionConflict
from pybroker.base.names import TxnId
from pybroker.broker.dispatch.delivery import Delivery
from pybroker.broker.nonpersistent.dispatch import Dispatcher, SingleActive, dispatcher_of
from pybroker.broker.policies.limits import Limited, check_consumers
from pybroker.broker.subscriptions.consumer import Consumer, SubscriptionType
from pybroker.broker.subscriptions.joining import check_joinable
from pybroker.broker.subscriptions.last_times import LastTimes
from pybroker.transaction.pending_acks.records import PendingAck


class Subscribed(Limited, Protocol):
    """The topic as its subscriptions need it."""

    def end_of_reader(self, subscription: "NonPersistentSubscription") -> None: ...


class NonPersistentSubscription:
    __slots__ = (
        "_closed",
        "_dispatcher",
        "_topic",
        "consumers",
        "dropped",
        "durable",
        "kind",
        "name",
        "properties",
        "times",
    )

    backlog: Final = 0
    redelivers_by_id: Final = False
    mark_delete_position: Final = EARLIEST

    def __init__(
        self, topic: Subscribed, name: str, durable: bool, properties: dict[str, str]
    ) -> None:
        """A subscription that is not `durable` ends with its last consumer."""
        self.name = name
        self.durable = durable
        self.properties = properties
        self.kind: SubscriptionType | None = None  # the type of the latest consumers
        self.consumers: list[Consumer] = []
        self.times = LastTimes()
        self.dropped = 0  # messages
        self._topic = topic
        self._dispatcher: Dispatcher | None = None
        self._closed: str | None = None

    def __str__(self) -> str:
        return f"Subscription {self.name} of {self._topic.name}"

    # -- consumers

    async def add_consumer(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Raises ConsumerBusy if its type or the limits exclude it, ConsumerAssignError for
        unusable key ranges, ServiceNotReady while the topic is being unloaded.
        """
        if self._closed is not None:
            raise ServiceNotReady(f"{self} is being unloaded: {self._closed}")
        check_joinable(self, kind)
        check_consumers(self._topic, self)
        dispatcher = self._dispatcher or self._new_dispatcher(kind, consumer)
        dispatcher.add(consumer)
        self.kind = kind
        self._dispatcher = dispatcher
        self.consumers.append(consumer)

    def _new_dispatcher(self, kind: SubscriptionType, first: Consumer) -> Dispatcher:
        topic = self._topic
        consistent = topic.policies.config.subscription_key_shared_use_consistent_hashing
        return dispatcher_of(kind, first, topic.name.partition, consistent)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Idempotent. A subscription that is not durable ends with its last consumer, also if its
        only consumer was not admitted.
        """
        if consumer in self.consumers:
            self._remove(consumer)
        if not self.durable and not self.consumers and self._closed is None:
            self._closed = "its last consumer has left"
            self._topic.end_of_reader(self)

    def _remove(self, consumer: Consumer) -> None:
        assert self._dispatcher is not None
        self.consumers.remove(consumer)
        self._dispatcher.remove(consumer)
        if not self.consumers:
            self._dispatcher = None

    def close(self, reason: str) -> None:
        """Disconnect all consumers, and admit no more."""
        self._closed = reason
        for consumer in list(self.consumers):
            self._remove(consumer)
            consumer.sink.close_consumer(consumer, reason)

    # -- messages

    def offer(self, delivery: Delivery) -> None:
        if self._dispatcher is not None:
            self.dropped += self._dispatcher.offer(delivery)
        elif self.kind is not None:  # nothing is counted as dropped before the first consumer
            self.dropped += sum(delivery.message_counts)

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.add_permits(permits)

    def notify(self) -> None:
        """There is never anything to send later."""

    # -- without effect, because nothing is stored

    def redeliver(
        self, consumer: Consumer, positions: Sequence[Position] | None, drops: bool = True
    ) -> None:
        pass

    def acknowledge(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> None:
        pass

    def acknowledge_indexes(
        self, consumer: Consumer, position: Position, still_unacked: int, batch_size: int
    ) -> None:
        pass

    def acknowledge_cumulative(
        self,
        consumer: Consumer,
        position: Position,
        still_unacked: int | None = None,
        batch_size: int = 0,
    ) -> None:
        pass

    def acknowledge_in_transaction(
        self,
        consumer: Consumer,
        txn_id: TxnId,
        acks: Sequence[PendingAck],
        cumulative: bool,
        covered: object = None,
    ) -> Awaitable[None]:
        raise TransactionConflict(
            "Transaction acknowledge only support the `PersistentSubscription`."
        )

    async def seek(self, position: Position, still_unacked: int = 0, batch_size: int = 0) -> None:
        await asyncio.sleep(0)

    async def seek_to_time(self, timestamp_ms: int) -> None:
        await asyncio.sleep(0)

    # -- for the admin API

    @property
    def active_consumer(self) -> Consumer | None:
        dispatcher = self._dispatcher
        return dispatcher.active if isinstance(dispatcher, SingleActive) else None

    @property
    def dispatcher(self) -> Dispatcher | None:
        return self._dispatcher
