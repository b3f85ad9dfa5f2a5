"""A checkpoint consumer: reads without a subscription, and says how far it has read.

A segment that comes from others is read when these were read to their ends, so the messages of a
key come in order. In a group, that holds for what one consumer has: where the others are, is in
their checkpoints.
"""

from pybroker.client.closing import Closing
from pybroker.client.connection.cluster import Cluster
from pybroker.client.consuming.subscribing import Start, SubscriptionSpec
from pybroker.client.consuming.topic_consumer import TopicConsumer
from pybroker.client.messages import Message, MessageId
from pybroker.client.scalable.checkpoint import Checkpoint
from pybroker.client.scalable.consumer import SegmentsConsumer
from pybroker.client.scalable.group_member import CHECKPOINT, Assigned, GroupMember
from pybroker.client.scalable.layout import Layout, Segment
from pybroker.client.scalable.opening import Opening
from pybroker.client.scalable.watch import LayoutWatch


class SegmentsReader(SegmentsConsumer):
    def __init__(
        self,
        cluster: Cluster,
        watch: LayoutWatch,
        spec: SubscriptionSpec,
        start: Checkpoint,
        group: str | None = None,
    ) -> None:
        """`spec` names the readers; `start` says where they begin; the consumers of a `group`
        divide the segments.
        """
        super().__init__(cluster, watch, spec)
        self._member: GroupMember | None = None
        if group is not None:
            name = self.consumer_name()
            args = (cluster, watch.topic, group, name, CHECKPOINT, self._assigned, self.queue.fail)
            self._member = GroupMember(*args)
        # None: all. Also in a group, to know where the end of all segments is now.
        self._own: set[int] | None = None if group is None or start.is_latest else set()
        self._has_layout = False
        watch.told = self._follow
        self._segments: dict[str, Segment] = {}  # by the names of their topics
        self._places = dict(start.places)
        self._begins_at_end = start.is_latest

    async def open(self) -> None:
        await self._cluster.open_all(self, [Opening(self._topic, self._open)])

    async def _open(self) -> None:
        await self._layouts.open()
        if self._own is None:
            await self._open_from_here()
        if self._member is not None:
            await self._member.open()
            await self._all_open()

    async def _open_from_here(self) -> None:
        await self._all_open()
        if self._begins_at_end:
            for name, part in list(self._parts.items()):
                await self._resolve(name, part)
            self._begins_at_end = False

    async def _resolve(self, name: str, part: TopicConsumer) -> None:
        """A checkpoint of now must say where the end was."""
        last, reached = await part.last_message_id()
        place = last if reached is None else reached
        if place.entry_id() >= 0:
            self._places.setdefault(self._segments[name].id, place)

    def _assigned(self, segments: Assigned) -> None:
        self._own = set(segments)
        if self._layouts.layout is not None:
            self._follow(self._layouts.layout)

    def _follow(self, layout: Layout) -> None:
        is_first, self._has_layout = not self._has_layout, True
        own = layout.segments if self._own is None else self._own
        self._segments = {each.topic: each for each in layout.segments.values() if each.id in own}
        for name, segment in self._segments.items():
            if is_first and self._begins_at_end and segment.is_sealed:
                self._places[segment.id] = MessageId.latest
            if segment.is_sealed and self._places.get(segment.id) == MessageId.latest:
                self._drained.add(name)
        unread = {each.id for name, each in self._segments.items() if name not in self._drained}
        wanted = {
            name: self._spec_of(each, is_first)
            for name, each in self._segments.items()
            if each.id not in unread or unread.isdisjoint(each.parents)
        }
        self._want(wanted, patient=not is_first)

    def _spec_of(self, segment: Segment, is_first: bool) -> SubscriptionSpec:
        start = self._places.get(segment.id, MessageId.earliest)
        if is_first and self._begins_at_end:
            start = MessageId.latest
        return SubscriptionSpec(
            self._spec.name, self._spec.options, Start(start), self._spec.create_topic
        )

    def drained(self, part: TopicConsumer) -> None:
        """It was read to its end: its children come next."""
        super().drained(part)
        if self._layouts.layout is not None:
            self._follow(self._layouts.layout)

    async def receive(self, timeout_millis: int | None = None) -> Message:
        message = await super().receive(timeout_millis)
        self.passed(message)
        return message

    def passed(self, message: Message) -> None:
        """The application has it. May run on any thread."""
        segment = self._segments.get(message.topic_name())
        if segment is not None:
            self._places[segment.id] = message.message_id()

    async def close(self) -> None:
        """The others of the group get its segments."""
        if not self._closed:
            await super().close()
            if self._member is not None:
                await self._member.close()

    @property
    def checkpoint(self) -> Checkpoint:
        """Segments that were deleted are not mentioned: nobody can read them."""
        there, places = {each.id for each in self._segments.values()}, dict(self._places)
        return Checkpoint({key: place for key, place in places.items() if key in there})


class CheckpointConsumer(Closing):
    """Created by Client.create_checkpoint_consumer."""

    def __init__(self, consumer: SegmentsReader) -> None:
        self.consumer = consumer

    def topic(self) -> str:
        return self.consumer.topic()

    def is_connected(self) -> bool:
        return self.consumer.is_connected()

    async def receive(self, timeout_millis: int | None = None) -> Message:
        """Waits for the next message. Raises Timeout."""
        return await self.consumer.receive(timeout_millis)

    def checkpoint(self) -> Checkpoint:
        """A consumer that starts there receives what comes after the messages received so far. In
        a group it is that of the segments which this consumer has now.
        """
        return self.consumer.checkpoint

    async def close(self) -> None:
        await self.consumer.close()
