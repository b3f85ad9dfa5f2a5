"""Limits how often one consumer may subscribe per period, to slow down reconnect loops.

A consumer is identified by its address, its name and its consumer id. The counts are dropped after
each period, so memory is limited by the requests within one.
"""

import asyncio
from typing import Final, Protocol

from pybroker.base.errors import NotAllowed
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.table import SUBSCRIBE_RATE

_MOST_CONSUMERS: Final = 10_000


class SubscribeLimit:
    __slots__ = ("_began_s", "_counts", "_most", "_period_s", "limits")

    def __init__(self, most: int, period_s: int) -> None:
        self.limits = most, period_s
        self._most, self._period_s = most, period_s
        self._began_s = asyncio.get_running_loop().time()
        self._counts: dict[tuple[str, str, int], int] = {}

    def check(self, address: str, name: str, consumer_id: int) -> None:
        """Count another request. Raises NotAllowed."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._began_s >= self._period_s or len(self._counts) >= _MOST_CONSUMERS:
            self._began_s = now_s
            self._counts.clear()
        who = address.rpartition(":")[0], name, consumer_id
        if self._counts.get(who, 0) >= self._most:
            raise NotAllowed("Subscribe limited by subscribe rate limit per consumer.")
        self._counts[who] = self._counts.get(who, 0) + 1


class Subscribed(Protocol):
    subscribe_limit: SubscribeLimit | None

    @property
    def policies(self) -> Effective: ...


class SubscribeLimits:
    def follow(self, topic: Subscribed) -> None:
        rate = topic.policies[SUBSCRIBE_RATE]
        limits = rate["subscribeThrottlingRatePerConsumer"], rate["ratePeriodInSecond"]
        if limits[0] <= 0:
            topic.subscribe_limit = None
        elif topic.subscribe_limit is None or topic.subscribe_limit.limits != limits:
            topic.subscribe_limit = SubscribeLimit(*limits)
