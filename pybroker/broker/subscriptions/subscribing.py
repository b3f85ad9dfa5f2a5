"""Creates and deletes the subscriptions of one topic, one at a time.

Concurrent subscribe requests get the same subscription; a request during a deletion gets a new one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

from managed_ledger.cursor import ManagedCursor
from managed_ledger.position import Position
from pybroker.base.errors import NotAllowed, SubscriptionNotFound
from pybroker.base.names import check_subscription_name
from pybroker.broker.deletion.deletions import Deletions, Doomed
from pybroker.broker.policies.limits import Limited, check_subscriptions
from pybroker.broker.subscriptions import isolation
from pybroker.broker.subscriptions.beginnings import begin_after
from pybroker.broker.subscriptions.isolation import Isolation
from pybroker.broker.subscriptions.subscribed_topic import SubscribedTopic
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.logs import audit


class OpenTopic(SubscribedTopic, Limited, Protocol):
    """The topic as this module needs it."""

    @property
    def deletions(self) -> Deletions: ...
    @property
    def subscriptions(self) -> dict[str, Subscription]: ...
    def check_open(self) -> None: ...


class Subscribing:
    """Holds no reference to its topic, to avoid a cycle: each call passes the topic."""

    __slots__ = ("_turn", "_waiting")

    def __init__(self) -> None:
        self._waiting = 0  # callers waiting for the lock or holding it
        self._turn: asyncio.Lock | None = None  # None while unused

    @property
    def busy(self) -> bool:
        """Whether a call is in progress."""
        return self._waiting > 0

    @asynccontextmanager
    async def _one_at_a_time(self, topic: OpenTopic) -> AsyncIterator[None]:
        self._waiting += 1
        self._turn = self._turn or asyncio.Lock()
        try:
            async with self._turn:
                topic.check_open()
                yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._turn = None

    async def durable(
        self,
        topic: OpenTopic,
        name: str,
        start: Position | None,
        properties: dict[str, str],
        create: bool,
    ) -> Subscription:
        """Like Topic.subscription; also raises LedgerClosed."""
        asked = isolation.asked_for(properties)
        async with self._one_at_a_time(topic):
            existing = _existing(topic, name, durable=True)
            if existing is not None:
                isolation.check_stays(existing.isolation, asked, existing)
                return existing
            check_subscription_name(name)
            if not create:
                raise SubscriptionNotFound(
                    f"Subscription {name} of {topic.name} does not exist and auto-creation is off"
                )
            check_subscriptions(topic)
            await _free(topic, name)
            start = begin_after(topic, start, isolation.kept_in(properties))
            cursor = await topic.ledger.open_cursor(name, start, properties)
            topic.check_open()  # it may have been closed in the meantime
            audit.done(audit.CREATE_SUBSCRIPTION, f"subscription {name} of {topic.name}")
            return await _opened(topic, cursor)

    async def reader(
        self, topic: OpenTopic, name: str, start: Position | None, asked: Isolation | None
    ) -> Subscription:
        async with self._one_at_a_time(topic):
            existing = _existing(topic, name, durable=False)
            if existing is not None:
                isolation.check_stays(existing.isolation, asked, existing)
                return existing
            check_subscriptions(topic)
            await _free(topic, name)
            topic.check_open()  # it may have been closed meanwhile
            start = begin_after(topic, start, asked or Isolation.READ_COMMITTED)
            cursor = topic.ledger.new_non_durable_cursor(name, start)
            if asked is Isolation.READ_UNCOMMITTED:
                cursor.properties = {isolation.PROPERTY: asked.value}
            return await _opened(topic, cursor)

    async def delete(self, topic: OpenTopic, name: str) -> None:
        async with self._one_at_a_time(topic):
            subscription = topic.subscriptions.get(name)
            if subscription is None:
                raise SubscriptionNotFound(f"Subscription {name} of {topic.name} does not exist")
            if subscription.durable:
                doomed = Doomed(topic.name, subscription=name)
                await topic.deletions.delete(doomed, partial(_discard, topic, subscription))
            else:
                topic.forget_subscription(name)
                await subscription.delete()


async def _opened(topic: OpenTopic, cursor: ManagedCursor) -> Subscription:
    subscription = await Subscription.open(topic, cursor)
    topic.subscriptions[cursor.name] = subscription
    return subscription


def _existing(topic: OpenTopic, name: str, durable: bool) -> Subscription | None:
    existing = topic.subscriptions.get(name)
    if existing is not None and existing.durable is not durable:
        kind = "a durable subscription" if existing.durable else "a reader"
        raise NotAllowed(f"{name} of {topic.name} is already {kind}; choose another name")
    return existing


async def _free(topic: OpenTopic, name: str) -> None:
    """Removes what is left of a previous subscription of that name: an unfinished deletion would
    also remove the new one, and a reader's cursor may be about to be deleted.
    """
    await topic.deletions.subscription_settled(topic.name, name)
    ledger = topic.ledger
    cursor = ledger.cursors.get(name)
    if cursor is not None and not cursor.durable:
        await ledger.delete_cursor(name)


async def _discard(topic: OpenTopic, subscription: Subscription) -> None:
    topic.forget_subscription(subscription.name)
    await subscription.discard()
