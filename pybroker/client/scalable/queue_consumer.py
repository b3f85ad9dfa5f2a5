"""A queue consumer: the messages of all segments, each acknowledged by itself, shared with others.

It reads every segment, also the sealed ones until they are drained. A segment that comes later has
the subscription already, from its parents.
"""

from typing import ClassVar

from pybroker.client.connection.cluster import Cluster
from pybroker.client.consuming.subscribing import SubscriptionSpec
from pybroker.client.consuming.topic_consumer import TopicConsumer
from pybroker.client.messages import MessageId
from pybroker.client.scalable.consumer import SegmentsConsumer, of_segments
from pybroker.client.scalable.dead_letters import DeadLetters
from pybroker.client.scalable.layout import Layout
from pybroker.client.scalable.opening import Opening
from pybroker.client.scalable.watch import LayoutWatch


class QueueConsumer(SegmentsConsumer):
    """Created by Client.create_queue_consumer."""

    has_dead_letters: ClassVar = True

    def __init__(
        self,
        cluster: Cluster,
        watch: LayoutWatch,
        spec: SubscriptionSpec,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        super().__init__(cluster, watch, spec)
        self._dead_letters = dead_letters
        if dead_letters is not None:
            self.queue.sieve = dead_letters.sieve
        watch.told = self._follow
        self._begun: set[str] | None = None  # the segments that were there at first
        self._seeking = 0

    async def open(self) -> None:
        await self._cluster.open_all(self, [Opening(self._topic, self._open)])

    async def _open(self) -> None:
        await self._layouts.open()
        await self._all_open()

    def _follow(self, layout: Layout) -> None:
        names = [each.topic for each in layout.segments.values()]
        is_first = self._begun is None
        self._begun = self._begun or set(names)
        self._want({name: self._spec_of(name) for name in names}, patient=not is_first)

    def _spec_of(self, name: str) -> SubscriptionSpec:
        is_new = self._begun is not None and name not in self._begun
        return of_segments(self._spec.of_new_partition if is_new else self._spec, name)

    async def seek(self, messageid: MessageId | int) -> None:
        """Seeks past a message, which moves only its segment, or to a publish time in ms, which
        moves the subscription on all segments.
        """
        self._seeking += 1
        try:
            self._drained.clear()
            if self._layouts.layout is not None:
                self._follow(self._layouts.layout)
            await self._all_open()
            await super().seek(messageid)
        finally:
            self._seeking -= 1
        for part in list(self._parts.values()):
            if part.reached_end and not await part.backlog():
                super().drained(part)

    def drained(self, part: TopicConsumer) -> None:
        """While a seek is under way, it is not known before or after which it was drained."""
        if not self._seeking:
            super().drained(part)

    def interrupted(self) -> None:
        """A crash undoes the last acknowledgements, and a seek more: drained segments are looked at
        again.
        """
        if self._drained and not self._seeking and self._layouts.layout is not None:
            self._drained.clear()
            self._follow(self._layouts.layout)

    async def close(self) -> None:
        """Dead letters on the way come again to another consumer."""
        if not self._closed:
            await super().close()
            if self._dead_letters is not None:
                await self._dead_letters.close()
