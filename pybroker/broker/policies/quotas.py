"""Backlog quotas, by size and by age, and what happens when a backlog exceeds one.

    producer_request_hold       producers are closed and admitted again when there is room
    producer_exception          the same, but clients give up at once
    consumer_backlog_eviction   the oldest messages are acknowledged for slow subscriptions

Every topic with a quota is checked once per check interval, and when a producer connects. The size
is that of the log after the slowest subscription, plus transactions waiting in the side log.
Eviction frees a tenth of the quota. It never drops waiting transactions: it drops more of the log
instead.
"""

import logging
from collections import Counter
from functools import partial
from typing import Final

from managed_ledger.housekeeper import Housekeeper
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.base.errors import PulsarError, QuotaExceededError, QuotaExceededException
from pybroker.base.names import is_kept_by_its_name
from pybroker.base.runtime import Clock
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.expiry import drop, expire_older, oldest_waiting_ms
from pybroker.broker.policies.policy import Record
from pybroker.broker.policies.rounds import Rounds
from pybroker.broker.policies.shapes import AGE, EVICTION, HOLD, SIZE
from pybroker.broker.policies.table import BACKLOG_QUOTAS

log = logging.getLogger(__name__)

LEFT_BY_EVICTION: Final = 0.9


class TopicQuota:
    """Checks and enforces a topic's backlog quotas."""

    def __init__(self, topic: Topic, clock: Clock) -> None:
        self._topic = topic
        self._clock = clock

    async def check(self) -> None:
        """Raises QuotaExceededError or QuotaExceededException, by the policy of the quota that is
        exceeded.
        """
        exceeded = [await self._exceeded(kind) for kind in (SIZE, AGE)]
        for quota in exceeded:
            if quota is not None and quota["policy"] != EVICTION:
                raise refusal(quota["policy"])

    async def keep(self, evictions: Counter[str]) -> None:
        """Enforce the quotas, and count evictions by the kind of quota."""
        for kind in (SIZE, AGE):
            quota = await self._exceeded(kind)
            policy = None if quota is None else quota["policy"]
            if quota is not None and policy == EVICTION:
                if await self._evict(kind, quota):
                    evictions[kind] += 1
            elif policy is not None and len(self._topic.producers):
                log.warning("%s is over its backlog quota (%s): %s", self._topic.name, kind, policy)
                self._topic.producers.disconnect(refusal(policy))

    async def _exceeded(self, kind: str) -> Record | None:
        """The quota, if it is exceeded and must be enforced."""
        quota = self._topic.policies[BACKLOG_QUOTAS].get(kind)
        if quota is None or (kind == AGE and is_kept_by_its_name(self._topic.name)):
            return None
        if kind == SIZE:
            over = 0 <= quota["limitSize"] <= backlog_bytes(self._topic)
        else:
            over = quota["limitTime"] > 0 and await self._oldest_s() > quota["limitTime"]
        holds = over and self._holds(kind, quota)
        return quota if holds and self._topic.subscriptions else None

    def _holds(self, kind: str, quota: Record) -> bool:
        """Whether the quota is unchanged."""
        return bool(quota == self._topic.policies[BACKLOG_QUOTAS].get(kind))

    async def _oldest_s(self) -> float:
        """The age of the oldest message that the slowest subscription has not acknowledged."""
        durable = [each for each in self._topic.subscriptions.values() if each.durable]
        if not durable:
            return 0.0
        slowest = min(durable, key=lambda each: each.cursor.mark_delete_position)
        now_ms = self._clock.now_ms()
        published_ms = await oldest_waiting_ms(self._topic, slowest)
        return 0.0 if published_ms is None else (now_ms - published_ms) / 1000

    async def _evict(self, kind: str, quota: Record) -> int:
        """Drops the oldest messages; returns the number of entries, over all subscriptions."""
        topic, now_ms, holds = self._topic, self._clock.now_ms(), partial(self._holds, kind, quota)
        if kind == AGE:
            age_ms = int(quota["limitTime"] * LEFT_BY_EVICTION * 1000)
            return await expire_older(topic, now_ms - age_ms, now_ms, holds)
        left = int(quota["limitSize"] * LEFT_BY_EVICTION) - topic.buffer.waiting_bytes
        up_to, evicted = leaving(topic.ledger, max(0, left)), 0
        for subscription in topic.each_subscription():
            if subscription.durable:
                dropped = await drop(topic, subscription, up_to, now_ms, holds)
                evicted += dropped
                if dropped:
                    log.warning("%s: %d entries were evicted", subscription, dropped)
        return evicted


def refusal(policy: str) -> PulsarError:
    kind = QuotaExceededError if policy == HOLD else QuotaExceededException
    return kind("Cannot create producer on topic with backlog quota exceeded")


def backlog_bytes(topic: Topic) -> int:
    """The log after the slowest subscription's position, and messages still to be added to it."""
    marks = [
        subscription.cursor.mark_delete_position
        for subscription in topic.subscriptions.values()
        if subscription.durable
    ]
    if not marks:
        return 0
    return bytes_behind(topic.ledger, min(marks)) + topic.buffer.waiting_bytes


def bytes_behind(ledger: ManagedLedger, mark: Position) -> int:
    """The bytes after `mark`, as if all entries of a ledger had the same size."""
    size_bytes = 0
    for info in ledger.ledgers():
        if info.ledger_id > mark.ledger_id:
            size_bytes += info.size_bytes
        elif info.ledger_id == mark.ledger_id and info.entries:
            size_bytes += info.size_bytes * (info.entries - mark.entry_id - 1) // info.entries
    return size_bytes


def leaving(ledger: ManagedLedger, most_bytes: int) -> Position:
    """The first position with at most `most_bytes` after it."""
    for info in reversed(ledger.ledgers()):
        if info.size_bytes > most_bytes:
            kept = info.entries * most_bytes // info.size_bytes
            return Position(info.ledger_id, info.entries - kept - 1)
        most_bytes -= info.size_bytes
    return ledger.first_position.before


class BacklogQuotas:
    def __init__(
        self, housekeeper: Housekeeper, clock: Clock, interval_s: float, evictions: Counter[str]
    ) -> None:
        self._clock = clock
        self._evictions = evictions
        self._rounds = Rounds(housekeeper, interval_s, _wanted, self._keep, Topic)

    def follow(self, topic: ServedTopic) -> None:
        if isinstance(topic, Topic):
            topic.quota = TopicQuota(topic, self._clock) if _wanted(topic) else None
            self._rounds.follow(topic)

    async def _keep(self, topic: Topic) -> None:
        await TopicQuota(topic, self._clock).keep(self._evictions)


def _wanted(topic: Topic) -> bool:
    return topic.policies.made(_limited) and not topic.name.system


def _limited(policies: Effective) -> bool:
    quotas = policies[BACKLOG_QUOTAS]
    size, age = quotas.get(SIZE), quotas.get(AGE)
    return bool(size and size["limitSize"] >= 0) or bool(age and age["limitTime"] > 0)
