"""Limits on messages and bytes dispatched per period: per subscription, and per topic.

Without a limit, subscriptions have no pace, and dispatch has no extra cost. With one, a round of
dispatch reads no more than it may deliver; redeliveries are not held back within a round, but count
like everything else.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pybroker.broker.dispatch.choosing import Dispatcher
from pybroker.broker.dispatch.entry_reader import EntryReader
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.policy import Record
from pybroker.broker.policies.table import (
    DISPATCH_RATE,
    SUBSCRIPTION_DISPATCH_RATE,
    SUBSCRIPTION_POLICIES,
)
from pybroker.broker.policies.throttle import Throttle, throttle
from pybroker.broker.subscriptions.consumer import Consumer

_LONGEST_WAIT_S: Final = 10.0


@dataclass(slots=True)
class HeldBack:
    """How often a round of dispatch had to wait, by the exhausted limit."""

    messages_by_own: int = 0
    bytes_by_own: int = 0
    messages_by_topic: int = 0
    bytes_by_topic: int = 0

    def note(self, own: Throttle | None, of_topic: Throttle | None) -> None:
        if own is not None and own.messages_left() <= 0:
            short = own.bytes_left() <= 0
            self.bytes_by_own += short
            self.messages_by_own += not short
        if of_topic is not None and of_topic.messages_left() <= 0:
            short = of_topic.bytes_left() <= 0
            self.bytes_by_topic += short
            self.messages_by_topic += not short


class DispatchPace:
    """The pace of one subscription."""

    __slots__ = ("_subscription", "_throttles", "_timer", "held_back", "of_topic", "own")

    def __init__(
        self,
        own: Throttle | None,
        of_topic: Throttle | None,
        subscription: "Paced",
        held_back: "HeldBack",
    ) -> None:
        self.own = own
        self.of_topic = of_topic
        self.held_back = held_back
        self._throttles = [each for each in (own, of_topic) if each is not None]
        self._subscription = subscription
        self._timer: asyncio.TimerHandle | None = None

    def dispatch(self, dispatcher: Dispatcher) -> bool:
        """Like Dispatcher.dispatch, as far as there are tokens; continues when there are more."""
        throttles, reader = self._throttles, self._subscription.reader
        consumers = self._subscription.consumers
        reader.most_messages = min(each.messages_left() for each in throttles)
        reader.most_bytes = min(each.bytes_left() for each in throttles)
        again = False
        if reader.most_messages > 0:
            messages, size_bytes = _out(consumers)
            again = dispatcher.dispatch()
            now, bytes_now = _out(consumers)
            for each in throttles:
                each.spend(now - messages, bytes_now - size_bytes)
        if any(each.messages_left() <= 0 for each in throttles):
            self.held_back.note(self.own, self.of_topic)
            self._wait(max(each.wait_s() for each in throttles))
            return False
        return again

    def _wait(self, wait_s: float) -> None:
        """The timer keeps the subscription in memory, so the wait is always short."""
        if self._timer is None:
            wait_s = min(wait_s, _LONGEST_WAIT_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        self._subscription.notify()


def _out(consumers: Sequence[Consumer]) -> tuple[int, int]:
    return sum(c.messages_out for c in consumers), sum(c.bytes_out for c in consumers)


class Paced(Protocol):
    """A subscription."""

    name: str
    reader: EntryReader
    consumers: list[Consumer]

    def notify(self) -> None: ...


class Dispatched(Protocol):
    dispatch_throttle: Throttle | None
    messages_in: int
    bytes_in: int

    @property
    def policies(self) -> Effective: ...


class DispatchRates:
    """Gives a topic the throttle that its subscriptions share. Implements Actor."""

    def follow(self, topic: Dispatched) -> None:
        rate = topic.policies[DISPATCH_RATE]
        topic.dispatch_throttle = _throttle(topic.dispatch_throttle, topic, rate)


def pace_of(
    now: DispatchPace | None, topic: Dispatched, subscription: Paced
) -> DispatchPace | None:
    """The subscription's pace, None without a limit; `now` is its present pace."""
    of_one = topic.policies[SUBSCRIPTION_POLICIES].get(subscription.name, {})
    of_all = topic.policies[SUBSCRIPTION_DISPATCH_RATE]
    rate: Record = of_one.get("dispatchRate") or of_all
    own = _throttle(None if now is None else now.own, topic, rate)
    subscription.reader.most_messages = None
    if own is None and topic.dispatch_throttle is None:
        return None
    held_back = HeldBack() if now is None else now.held_back
    return DispatchPace(own, topic.dispatch_throttle, subscription, held_back)


def _throttle(now: Throttle | None, topic: Dispatched, rate: Record) -> Throttle | None:
    """Relative to the topic's publish rate, if the policy says so."""

    def published() -> tuple[int, int]:
        return topic.messages_in, topic.bytes_in

    return throttle(
        now,
        rate["dispatchThrottlingRateInMsg"],
        rate["dispatchThrottlingRateInByte"],
        rate["ratePeriodInSecond"],
        published if rate["relativeToPublishRate"] else None,
    )
