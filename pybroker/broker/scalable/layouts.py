"""Tells clients a topic's layout, now and whenever it changes.

Differs: Apache's broker sends the layout of an ordinary topic once. Here clients also hear of
partitions that are added later, from whichever broker adds them.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import NotAllowed, PulsarError, TopicNotFound
from pybroker.base.names import SCALABLE, TopicName
from pybroker.base.runtime import Clock, Pace, Tasks
from pybroker.broker.brokers.ownership import ALONE
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.namespaces.usable_names import refuse_internal
from pybroker.broker.scalable.layout import Layout, layout_of, scalable_layout
from pybroker.broker.scalable.measures import SUCCESS
from pybroker.broker.topics import Topics

Told = Callable[[Layout], None]
_TOLD_A_TURN: Final = 200
# Other brokers give new partitions their subscriptions; that long, and no longer, clients wait.
_LOOKS: Final = 100
_LOOK_EVERY_S: Final = 0.1
_LOOK_AGAIN_S: Final = 1.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Feed:
    """Of one topic that clients watch."""

    layout: Layout
    told: dict[Told, None] = field(default_factory=dict)
    changed: bool = False
    looking: bool = False


class Layouts:
    def __init__(self, topics: Topics, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._feeds: dict[TopicName, _Feed] = {}
        self._tasks = Tasks("layouts")
        topics.tenants.on_partitions(self._changed)
        topics.scalable.on_change(self._changed_with_its_namesake)

    async def meant(self, name: TopicName) -> TopicName:
        """The topic that a client of the V5 SDK means: the SDK completes short names to
        persistent:// ones, also those of scalable topics. Source: Apache Pulsar 5.0.1.
        """
        if name.domain != "persistent" or name.partition >= 0:
            return name
        topics, scalable = self._topics, name._replace(domain=SCALABLE)
        if not topics.tenants.partitions(name) and not topics.exists(name):
            await topics.ownership.refreshed()  # another broker may have just created it
        return scalable if topics.tenants.has_scalable_topic(scalable) else name

    async def begin(self, name: TopicName, create: bool, told: Told) -> Layout:
        """Returns the layout; `told` is called with each later one, until `end`. `create`: makes
        the topic if it is missing and policies allow that.

        Raises NotAllowed, TopicNotFound, NotFound, ServiceNotReady.
        """
        check_name(name)
        if name.domain == SCALABLE:
            layout = await self._scalable(name, create)
        else:
            partitions = await self._topics.partitions_for_client(name, create)
            if self._topics.was_migrated(name):  # just now
                layout = await self._scalable(name.scalable_name, create)
            else:
                layout = layout_of(name, partitions, self._clock.now_ms())
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = _Feed(layout)
        elif feed.layout.says_the_same(layout):
            layout = feed.layout
        else:
            self._changed(name)  # the others hear of it in their turn
        feed.told[told] = None
        return layout

    async def _scalable(self, name: TopicName, create: bool) -> Layout:
        scalable, topics = self._topics.scalable, self._topics
        with suppress(TopicNotFound):
            return scalable_layout(name, await scalable.settled(name), self._clock.now_ms())
        if not create or not topics.auto_creation(name):
            raise TopicNotFound(f"{name} does not exist and topic auto-creation is off")
        with suppress(Conflict):  # a concurrent request has created it
            await scalable.create(name)
        return scalable_layout(name, await scalable.settled(name), self._clock.now_ms())

    def end(self, name: TopicName, told: Told) -> None:
        """Idempotent."""
        feed = self._feeds.get(name)
        if feed is not None:
            feed.told.pop(told, None)
            if not feed.told:
                del self._feeds[name]

    @property
    def watches(self) -> int:
        return sum(len(feed.told) for feed in self._feeds.values())

    async def close(self) -> None:
        self._feeds.clear()
        await self._tasks.close()

    def _changed_with_its_namesake(self, name: TopicName) -> None:
        """Clients of an ordinary topic go on when it is made scalable."""
        self._changed(name)
        self._changed(name._replace(domain="persistent"))

    def _changed(self, name: TopicName) -> None:
        feed = self._feeds.get(name)
        if feed is None:
            return
        feed.changed = True
        if not feed.looking:
            feed.looking = True
            self._tasks.start(self._look(name, feed), f"layout of {name}")

    async def _look(self, name: TopicName, feed: _Feed) -> None:
        pace = Pace(_TOLD_A_TURN)
        try:
            while feed.changed and self._feeds.get(name) is feed:
                feed.changed = False
                try:
                    layout = await self._next(name, feed)
                except (PulsarError, ManagedLedgerError) as error:
                    feed.changed = not self._is_gone(name)
                    log.warning("clients of %s keep its former layout for now: %s", name, error)
                    await asyncio.sleep(_LOOK_AGAIN_S)
                    continue
                if layout is not None:
                    feed.layout = layout
                    await self._tell(feed, pace)
        finally:
            feed.looking = False

    def _is_gone(self, name: TopicName) -> bool:
        """Then its clients hear nothing, unless it is created again."""
        return name.domain == SCALABLE and not self._topics.tenants.has_scalable_topic(name)

    async def _settled(self, name: TopicName, former: int) -> None:
        """New partitions have their subscriptions: a consumer that came first would begin where it
        was told to begin on a new topic, perhaps behind the first messages.
        """
        await self._topics.settled(name)
        new = range(former, self._topics.tenants.partitions(name))
        for _ in range(0 if self._topics.ownership is ALONE else _LOOKS):
            if await self._topics.partitioned.are_subscribed(name, new):
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _next(self, name: TopicName, feed: _Feed) -> Layout | None:
        """The layout after a change; None if there is none."""
        if name.domain == SCALABLE or self._topics.was_migrated(name):
            record = await self._topics.scalable.settled(name.scalable_name)
            layout = scalable_layout(name.scalable_name, record, self._clock.now_ms())
            return None if layout.says_the_same(feed.layout) else layout
        await self._settled(name, feed.layout.partitions)
        partitions = self._topics.tenants.partitions(name)
        if partitions in (0, feed.layout.partitions):  # 0: deleted, and nobody is to create it
            return None
        return layout_of(name, partitions, self._clock.now_ms())

    async def _tell(self, feed: _Feed, pace: Pace) -> None:
        for told in list(feed.told):
            if told in feed.told:  # it may have ended meanwhile
                told(feed.layout)
                self._topics.scalable.measures.updates[SUCCESS] += 1
            await pace.step()


def check_name(name: TopicName) -> None:
    """Raises NotAllowed for non-persistent names and those of transaction logs, TopicNotFound for
    one partition.
    """
    if not name.persistent:
        raise NotAllowed(
            f"{name}: the V5 SDK has no non-persistent topics: use a 4.x client, or a persistent "
            "topic"
        )
    refuse_internal(name)
    if name.partition >= 0:
        raise TopicNotFound(
            f"{name} is one partition: open {name.partitioned_name}, which has a segment for each"
        )
