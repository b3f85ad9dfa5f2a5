"""Message TTL: unacknowledged messages older than this are acknowledged on their subscription.

The publish time decides. Everything up to an expired message is acknowledged, because the log is
one sequence. Never dropped: messages of open transactions, which cannot be read yet (except on a
read_uncommitted subscription), and messages that an open transaction has acknowledged, until it has
ended.

Damaged entries have no readable time: they expire with the messages after them.

Differs: readers' subscriptions are left alone, and topics that are kept by their name.
"""

import asyncio
from collections.abc import Callable

from managed_ledger.housekeeper import Housekeeper
from managed_ledger.position import Position
from pybroker.base.names import is_kept_by_its_name
from pybroker.base.runtime import Clock
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.persistent.publish_time import (
    first_published_at,
    last_published_before,
    published_at,
)
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.rounds import Rounds
from pybroker.broker.policies.table import MESSAGE_TTL
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.broker.subscriptions.waiting_entries import first_readable

Holds = Callable[[], bool]  # whether the policy still requires the drop


def always() -> bool:
    return True


class MessageExpiry:
    def __init__(self, housekeeper: Housekeeper, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._rounds = Rounds(housekeeper, interval_s, _wanted, self._expire, Topic)

    def follow(self, topic: ServedTopic) -> None:
        self._rounds.follow(topic)

    async def _expire(self, topic: Topic) -> None:
        now_ms, ttl_s = self._clock.now_ms(), topic.policies[MESSAGE_TTL]
        than_ms = now_ms - ttl_s * 1000
        await expire_older(topic, than_ms, now_ms, lambda: topic.policies[MESSAGE_TTL] == ttl_s)


def _wanted(topic: Topic) -> bool:
    kept = topic.name.system or is_kept_by_its_name(topic.name)
    return topic.policies[MESSAGE_TTL] > 0 and not kept


async def expire_older(topic: Topic, than_ms: int, now_ms: int, holds: Holds = always) -> int:
    """Drops messages published before `than_ms`; returns the number of entries, over all
    subscriptions.
    """
    dropped = 0
    for subscription in topic.each_subscription():
        if subscription.durable:
            dropped += await _expire(topic, subscription, than_ms, now_ms, holds)
            await asyncio.sleep(0)
    return dropped


async def _expire(
    topic: Topic, subscription: Subscription, than_ms: int, now_ms: int, holds: Holds
) -> int:
    first = await first_readable(topic.ledger, subscription.cursor, topic.hidden)
    oldest_ms = None if first is None else published_at(first)
    if first is None or (oldest_ms is not None and oldest_ms >= than_ms):
        return 0
    mark = subscription.cursor.mark_delete_position
    younger = await first_published_at(topic.ledger, than_ms, after=mark)
    found = topic.ledger.previous_position(younger)
    up_to = await only_older(topic, subscription, than_ms, found)
    return await drop(topic, subscription, up_to, now_ms, holds)


async def only_older(
    topic: Topic, subscription: Subscription, than_ms: int, up_to: Position
) -> Position:
    """`up_to`, the result of a search, or less if newer messages wait before it: a commit in commit
    order puts old messages after newer ones.
    """
    if not topic.buffer.keeps_aside:
        return up_to
    mark = subscription.cursor.mark_delete_position
    return await last_published_before(topic.ledger, than_ms, mark, up_to)


async def oldest_waiting_ms(topic: Topic, subscription: Subscription) -> int | None:
    """When the first readable unacknowledged message was published; None if there is none."""
    first = await first_readable(topic.ledger, subscription.cursor, topic.hidden)
    return None if first is None else published_at(first)


async def drop(
    topic: Topic,
    subscription: Subscription,
    up_to: Position,
    now_ms: int,
    holds: Holds = always,
) -> int:
    """Acknowledge everything up to `up_to` that may be dropped; returns the number of entries."""
    pending = await subscription.replayed()
    gone = topic.closed or topic.subscriptions.get(subscription.name) is not subscription
    if gone or not holds():
        return 0
    up_to = min(up_to, subscription.reader.limit)
    if pending is not None and (held := pending.first_pending) is not None:
        up_to = min(up_to, topic.ledger.previous_position(held))
    dropped = 0
    if up_to > subscription.cursor.mark_delete_position:
        dropped = subscription.cursor.backlog(up_to)
        subscription.times.expire(dropped, now_ms)
        await subscription.skip_to(up_to)
    return dropped


def waiting_up_to(subscription: Subscription, position: Position) -> int:
    """The number of entries up to `position` that are unacknowledged and will be delivered."""
    hidden = subscription.reader.hidden_backlog(position)
    return subscription.cursor.backlog(position) - hidden
