"""Messages that wait for longer than their time to live are acknowledged for their subscription.

What is acknowledged reaches up to a message that has expired, by its publish time; what stands
before it goes too, as the log is one. Never dropped: messages of open transactions, which nobody
may read yet (but on a subscription that is read_uncommitted), and what an open transaction has
acknowledged, until it has ended.

Damaged entries have no time that could be read: they go with what has expired behind them.

Differs: a reader's subscription, which nobody's messages wait for, is left alone.
"""

import asyncio
from collections.abc import Callable

from managed_ledger.housekeeper import Housekeeper
from managed_ledger.position import Position
from pybroker.base.runtime import Clock
from pybroker.broker.policies.rounds import Rounds
from pybroker.broker.policies.table import MESSAGE_TTL
from pybroker.broker.publish_time import (
    first_published_at,
    last_published_before,
    published_at,
)
from pybroker.broker.served import ServedTopic
from pybroker.broker.subscription import Subscription
from pybroker.broker.topic import Topic
from pybroker.broker.waiting_entries import first_readable

Holds = Callable[[], bool]  # whether the policy is still the one that asks for it


def nobody_takes_it_back() -> bool:
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
    return topic.policies[MESSAGE_TTL] > 0


async def expire_older(
    topic: Topic, than_ms: int, now_ms: int, holds: Holds = nobody_takes_it_back
) -> None:
    for subscription in topic.each_subscription():
        if subscription.durable:
            await _expire(topic, subscription, than_ms, now_ms, holds)
            await asyncio.sleep(0)


async def _expire(
    topic: Topic, subscription: Subscription, than_ms: int, now_ms: int, holds: Holds
) -> None:
    first = await first_readable(topic.ledger, subscription.cursor, topic.hidden)
    oldest_ms = None if first is None else published_at(first)
    if first is None or (oldest_ms is not None and oldest_ms >= than_ms):
        return
    mark = subscription.cursor.mark_delete_position
    younger = await first_published_at(topic.ledger, than_ms, after=mark)
    found = topic.ledger.previous_position(younger)
    up_to = await only_older(topic, subscription, than_ms, found)
    await drop(topic, subscription, up_to, now_ms, holds)


async def only_older(
    topic: Topic, subscription: Subscription, than_ms: int, up_to: Position
) -> Position:
    """`up_to`, which a search has found, or as far as nothing younger waits before it: a commit in
    commit order puts old messages behind younger ones.
    """
    if not topic.buffer.keeps_aside:
        return up_to
    mark = subscription.cursor.mark_delete_position
    return await last_published_before(topic.ledger, than_ms, mark, up_to)


async def oldest_waiting_ms(topic: Topic, subscription: Subscription) -> int | None:
    """When the first message was published that waits for acknowledgement, and can be read; None
    if none does.
    """
    first = await first_readable(topic.ledger, subscription.cursor, topic.hidden)
    return None if first is None else published_at(first)


async def drop(
    topic: Topic,
    subscription: Subscription,
    up_to: Position,
    now_ms: int,
    holds: Holds = nobody_takes_it_back,
) -> int:
    """Acknowledge everything up to there that may be dropped; returns how many entries."""
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
    """How many entries up to there are not acknowledged, and will be delivered."""
    hidden = subscription.reader.hidden_backlog(position)
    return subscription.cursor.backlog(position) - hidden
