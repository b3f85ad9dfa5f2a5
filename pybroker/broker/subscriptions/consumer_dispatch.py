"""The consumers of a subscription, and the dispatcher of their type.

    readable: notify → dispatcher → consumers, as far as permits and sockets allow
The dispatcher lives as long as there are consumers; the next one starts after the mark-delete
position. `notify` is called whenever dispatch may be able to continue; one dispatch per tick
follows.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import CorruptStorage
from managed_ledger.position import Position
from pybroker.broker.dispatch.choosing import Dispatcher, dispatcher_of, reader_of
from pybroker.broker.dispatch.compacted_reader import CompactedReader
from pybroker.broker.dispatch.key_shared import KeySharedDispatcher
from pybroker.broker.dispatch.redelivery import NO_REDELIVERIES, RedeliveryCounts
from pybroker.broker.dispatch.shared import SharedDispatcher
from pybroker.broker.dispatch.single import SingleActiveDispatcher
from pybroker.broker.dispatch.uncommitted_reader import OnSettled
from pybroker.broker.policies.dispatch_rate import DispatchPace, pace_of
from pybroker.broker.policies.limits import unacked_limits
from pybroker.broker.subscriptions.consumer import Consumer, SubscriptionType
from pybroker.broker.subscriptions.isolation import Isolation
from pybroker.broker.subscriptions.subscribed_topic import SubscribedTopic

_LOOK_AT_DAMAGE_S: Final = 1.0


class ConsumerDispatch:
    __slots__ = (
        "_cursor",
        "_looks_at_damage",
        "_notified",
        "_topic",
        "compacted_damage",
        "consumers",
        "damage",
        "dispatcher",
        "has_last_message",
        "kind",
        "name",
        "pace",
        "reader",
        "redelivery_counts",
    )

    def __init__(
        self,
        topic: SubscribedTopic,
        cursor: ManagedCursor,
        isolation: Isolation,
        on_settled: OnSettled,
    ) -> None:
        self.name = cursor.name
        self.kind: SubscriptionType | None = None  # the type of the latest consumers
        self.consumers: list[Consumer] = []
        self._topic = topic
        self._cursor = cursor
        means = (topic, cursor, self.notify, self._found_damage, on_settled)
        self.reader = reader_of(isolation, *means)
        self.dispatcher: Dispatcher | None = None
        self.redelivery_counts = NO_REDELIVERIES
        self.pace: DispatchPace | None = None
        # Damage that its consumers could not get past, or those that read compacted.
        self.damage: CorruptStorage | None = None
        self.compacted_damage: CorruptStorage | None = None
        self.has_last_message = topic.ended
        self._notified = False
        self._looks_at_damage: asyncio.TimerHandle | None = None

    # -- consumers

    def add(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Serve the consumer once it has permits. Raises ConsumerAssignError."""
        dispatcher = self.dispatcher or self._new_dispatcher(kind, consumer)
        dispatcher.add(consumer)
        self.kind, self.dispatcher = kind, dispatcher
        if self.redelivers_by_id and not self.reader.clients_may_return:
            self.reader.lives = None
        self.consumers.append(consumer)
        self._look_what_they_take()
        self.notify()

    def remove(self, consumer: Consumer) -> None:
        """The consumer's unacknowledged messages go to the others."""
        assert self.dispatcher is not None
        self.consumers.remove(consumer)
        self.dispatcher.remove(consumer)
        if not self.consumers:
            self.dispatcher = None
        self._look_what_they_take()
        self.notify()

    def _look_what_they_take(self) -> None:
        """A conversion that nobody needs costs more than all else."""
        if self.consumers:
            self.reader.read_as_stored(all(each.request.takes_stored for each in self.consumers))

    def disconnect_consumers(self, reason: str) -> None:
        for consumer in list(self.consumers):
            self.remove(consumer)
            consumer.sink.close_consumer(consumer, reason)

    def _found_damage(self, damage: CorruptStorage, at: Position | None) -> None:
        """Disconnect the consumers, which cannot get past the damage until the cursor is moved;
        not before they have acknowledged what precedes it, because clients drop at a disconnection
        what they have prefetched.
        """
        if at is not None and self._cursor.is_deleted(at):  # while it was being read
            self.notify()
        elif self._is_unacked_before(at):
            if self._looks_at_damage is None:
                later = asyncio.get_running_loop().call_later
                self._looks_at_damage = later(_LOOK_AT_DAMAGE_S, self._look_at_damage)
        else:
            if at is None:
                self.compacted_damage = damage
            else:
                self.damage = damage
            self.disconnect_consumers(str(damage))

    def _is_unacked_before(self, at: Position | None) -> bool:
        if isinstance(to := self.dispatcher, SingleActiveDispatcher) and to.compacted is not None:
            return to.compacted.has_unacked
        if at is None:
            return False
        return self._cursor.backlog(at.before) > self.reader.hidden_backlog(at.before)

    def _look_at_damage(self) -> None:
        """Whoever wants what is damaged finds that again."""
        self._looks_at_damage = None
        self.notify()

    def cursor_moved(self) -> None:
        """By an administrator or a seek: consumers may be past the damage, or come to it again."""
        self.damage = self.compacted_damage = None
        if self._looks_at_damage is not None:
            self._looks_at_damage.cancel()
            self._looks_at_damage = None

    def _new_dispatcher(self, kind: SubscriptionType, first: Consumer) -> Dispatcher:
        topic, counts = self._topic, self.redelivery_counts
        if kind.single_active:
            counts = NO_REDELIVERIES
        elif counts is NO_REDELIVERIES:
            counts = RedeliveryCounts(self._cursor.is_deleted)
        self.redelivery_counts, limits = counts, topic.policies.made(unacked_limits)
        means = (self.reader, counts, limits, topic.delays, self.notify)
        reading = (topic, self._cursor, self.reader, self.notify, self._found_damage)
        compacted = partial(CompactedReader, *reading)
        consistent = topic.config.subscription_key_shared_use_consistent_hashing
        return dispatcher_of(kind, first, topic.name.partition, *means, compacted, consistent)

    def follow_policies(self) -> None:
        """Apply the topic's current policies."""
        if isinstance(self.dispatcher, SharedDispatcher):
            self.dispatcher.set_limits(self._topic.policies.made(unacked_limits))
        self.pace = pace_of(self.pace, self._topic, self)
        self.notify()

    def break_cycles(self) -> None:
        """The subscription was closed, and its consumers disconnected."""
        self.reader.break_cycles()
        self.cursor_moved()
        self.pace = None

    # -- dispatch

    def notify(self) -> None:
        """Dispatch in this tick: something may be readable, or a consumer ready."""
        if not self._notified and self.consumers:
            self._notified = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._notified, to, pace = False, self.dispatcher, self.pace
        if to is not None and (to.dispatch() if pace is None else pace.dispatch(to)):
            self.notify()
        elif self.has_last_message and not self.backlog:
            self._tell_of_the_end()

    def topic_ended(self) -> None:
        """The topic was terminated: consumers are told once everything is acknowledged."""
        self.has_last_message = True
        self.notify()

    def _tell_of_the_end(self) -> None:
        for consumer in self.consumers:
            if not consumer.at_end:
                consumer.at_end = True
                consumer.sink.reached_end_of_topic(consumer)

    def redeliver(
        self, consumer: Consumer, positions: Sequence[Position] | None, drops: bool
    ) -> None:
        """See Subscription.redeliver."""
        if self.dispatcher is not None and consumer in self.consumers:
            self.dispatcher.redeliver(consumer, positions, drops)
            self.notify()

    def give_back(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """See Subscription.give_back."""
        to = self.dispatcher
        if isinstance(to, SharedDispatcher) and consumer in self.consumers:
            consumer.left_out.asked_again(positions)
            to.give_back(consumer, positions)
            self.notify()

    @property
    def redelivers_by_id(self) -> bool:
        """Whether single messages can be redelivered: Exclusive and Failover redeliver all."""
        return self.kind is not None and not self.kind.single_active

    # -- for the admin API

    @property
    def active_consumer(self) -> Consumer | None:
        """The active consumer, for Exclusive and Failover."""
        return to.active if isinstance(to := self.dispatcher, SingleActiveDispatcher) else None

    @property
    def key_shared(self) -> KeySharedDispatcher | None:
        """The dispatcher, for Key_Shared."""
        return to if isinstance(to := self.dispatcher, KeySharedDispatcher) else None

    @property
    def unacked_messages(self) -> int:
        """Delivered, unacknowledged messages, for Shared and Key_Shared; 0 for other types."""
        return sum(consumer.unacked.messages for consumer in self.consumers)

    @property
    def delayed_messages(self) -> int:
        """The number of delayed entries, as far as the log has been read."""
        return 0 if self.dispatcher is None else self.dispatcher.delayed

    @property
    def in_replay(self) -> int:
        return 0 if self.dispatcher is None else self.dispatcher.in_replay

    @property
    def delayed_bytes(self) -> int:
        return 0 if self.dispatcher is None else self.dispatcher.delayed_bytes

    @property
    def backlog(self) -> int:
        """Entries not acknowledged yet; aborted messages and markers do not count."""
        up_to = self._topic.ledger.last_confirmed
        return self._cursor.backlog(up_to) - self.reader.hidden_backlog(up_to)
