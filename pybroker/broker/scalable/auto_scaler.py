"""Measures the load of segments, and splits and merges topics by it: see auto_scale.

A topic's owner serves all its segments, so it measures them itself, in each interval of
scalableTopicAutoScaleIntervalSeconds. As consumers come and go, it decides again by what it knows.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import PulsarError
from pybroker.base.names import TopicName
from pybroker.base.runtime import Clock, Pace, Tasks
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.auto_scale import AUTO_SCALE, contradiction
from pybroker.broker.scalable.auto_scale import Change, Load, Situation, is_cold, next_change
from pybroker.broker.scalable.buckets import BucketLimits
from pybroker.broker.scalable.measures import FAILURE, SUCCESS, ScalableMeasures
from pybroker.broker.scalable.record import TopicRecord, of_segment
from pybroker.broker.scalable.serving import ServesTopics
from pybroker.broker.subscriptions.consumer import Consumer

_A_TURN: Final = 100

log = logging.getLogger(__name__)


class Scales(Protocol):
    measures: ScalableMeasures

    @property
    def bucket_limits(self) -> BucketLimits: ...
    def owned(self) -> Iterable[TopicName]: ...
    def find(self, name: TopicName) -> TopicRecord | None: ...
    async def split(self, name: TopicName, segment: int, trigger: str) -> TopicRecord: ...
    async def merge(self, name: TopicName, one: int, other: int, trigger: str) -> TopicRecord: ...
    async def rebucket(
        self, name: TopicName, segment: int, buckets: int, trigger: str
    ) -> TopicRecord: ...


@dataclass(slots=True)
class _Reading:
    topic: Topic
    at_s: float
    received: tuple[int, int]  # messages, bytes
    delivered: dict[Consumer, tuple[int, int]]


@dataclass(slots=True)
class _Watched:
    """Of one topic; by segment."""

    readings: dict[int, _Reading] = field(default_factory=dict)
    loads: dict[int, Load] = field(default_factory=dict)
    cold_since_s: dict[int, float] = field(default_factory=dict)
    changing: bool = False
    blocked: str | None = None  # why nothing is changed


class AutoScaler:
    def __init__(
        self, scalable: Scales, topics: ServesTopics, clock: Clock, interval_s: float
    ) -> None:
        self._scalable = scalable
        self._topics = topics
        self._clock = clock
        self._interval_s = interval_s
        self._watched: dict[TopicName, _Watched] = {}
        self._looking = False
        self._tasks = Tasks("auto-scaling")
        self.consumers: Callable[[TopicName], int] = lambda _: 0  # of the largest group

    def begin(self) -> None:
        """There are topics. Idempotent."""
        if not self._looking:
            self._looking = True
            self._tasks.start(self._look(), "look")

    async def close(self) -> None:
        await self._tasks.close()

    def policy(self, name: TopicName, record: TopicRecord) -> Mapping[str, Any]:
        """The topic's own over its namespace's over the broker's."""
        of_namespace = self._topics.policies.of_namespace(name.namespace_name)[AUTO_SCALE]
        return {**of_namespace, **record.auto_scale}

    def blocked(self, name: TopicName) -> str | None:
        """Why the topic was not changed when it was last looked at."""
        watched = self._watched.get(name)
        return None if watched is None else watched.blocked

    def consumers_changed(self, name: TopicName) -> None:
        if (watched := self._watched.get(name)) is not None:
            self._consider(name, watched)

    async def _look(self) -> None:
        pace = Pace(_A_TURN)
        try:
            while owned := set(self._scalable.owned()):
                for name in self._watched.keys() - owned:
                    del self._watched[name]
                for name in owned:
                    await self._look_at(name, self._watched.setdefault(name, _Watched()), pace)
                    await pace.step()
                await asyncio.sleep(self._interval_s)
        finally:
            self._watched.clear()
            self._looking = False

    async def _look_at(self, name: TopicName, watched: _Watched, pace: Pace) -> None:
        loads = self._scalable.measures.loads
        try:
            if (record := self._scalable.find(name)) is not None:
                await self._measure(name, record, watched, pace)
                loads[SUCCESS] += len(watched.readings)
                self._consider(name, watched)
        except (PulsarError, ManagedLedgerError) as error:
            loads[FAILURE] += 1
            log.warning("%s is not auto-scaled: %s", name, error)

    async def _measure(
        self, name: TopicName, record: TopicRecord, watched: _Watched, pace: Pace
    ) -> None:
        policy = self.policy(name, record)
        readings, loads, cold_since_s = dict[int, _Reading](), dict[int, Load](), dict[int, float]()
        for each in record.active:
            await pace.step()
            now_s = self._clock.monotonic_s()
            topic = self._topics.serving(of_segment(name, each))
            if topic is None:
                continue
            readings[each.id] = now = _read(topic, now_s)
            last = watched.readings.get(each.id)
            if last is None or last.topic is not topic or last.at_s >= now_s:
                continue
            load = loads[each.id] = _between(last, now)
            if is_cold(load, policy):
                cold_since_s[each.id] = watched.cold_since_s.get(each.id, last.at_s)
        watched.readings, watched.loads, watched.cold_since_s = readings, loads, cold_since_s

    def _consider(self, name: TopicName, watched: _Watched) -> None:
        record = self._scalable.find(name)
        if record is None or watched.changing:
            return
        policy = self.policy(name, record)
        if not policy["enabled"]:
            watched.blocked = "it is disabled"
            return
        if (why := contradiction(policy)) is not None:
            watched.blocked = f"the policy is invalid: {why}"
            return
        now_s = self._clock.monotonic_s()
        cold_s = {number: now_s - since_s for number, since_s in watched.cold_since_s.items()}
        most = self._scalable.bucket_limits.most
        consumers, now_ms = self.consumers(name), self._clock.now_ms()
        situation = Situation(record, watched.loads, cold_s, consumers, now_ms, most)
        change = next_change(situation, policy)
        watched.blocked = None if isinstance(change, Change) else change.why
        if isinstance(change, Change):
            watched.changing = True
            self._tasks.start(self._change(name, watched, change), f"change of {name}")

    async def _change(self, name: TopicName, watched: _Watched, change: Change) -> None:
        log.info("%s: %s", name, change.why)
        try:
            one, other = change.segments[0], change.segments[-1]
            if change.buckets is not None:
                for each in change.segments:
                    await self._scalable.rebucket(name, each, change.buckets, trigger="auto")
            elif other != one:
                await self._scalable.merge(name, one, other, trigger="auto")
            else:
                await self._scalable.split(name, one, trigger="auto")
        except (PulsarError, ManagedLedgerError) as error:
            watched.blocked = f"{change.why}, but: {error}"
            log.warning("%s: %s", name, watched.blocked)
        finally:
            watched.changing = False


def _read(topic: Topic, now_s: float) -> _Reading:
    consumers = (each for of in topic.subscriptions.values() for each in of.consumers)
    delivered = {each: (each.messages_out, each.bytes_out) for each in consumers}
    return _Reading(topic, now_s, (topic.messages_in, topic.bytes_in), delivered)


def _between(last: _Reading, now: _Reading) -> Load:
    """What a consumer got that has left meanwhile is not counted."""
    received = [new - old for new, old in zip(now.received, last.received, strict=True)]
    before = (last.delivered.get(each, (0, 0)) for each in now.delivered)
    delivered = [
        (new[0] - old[0], new[1] - old[1])
        for new, old in zip(now.delivered.values(), before, strict=True)
    ]
    counts = *received, sum(each[0] for each in delivered), sum(each[1] for each in delivered)
    passed_s = now.at_s - last.at_s
    return Load(*(count / passed_s for count in counts))
