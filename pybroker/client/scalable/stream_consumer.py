"""A stream consumer: the messages of each key in order, acknowledged up to one of them.

The controller divides the segments among the consumers of a subscription. It gives a segment away
only when those before it are drained, so the order of a key's messages survives splits and merges.
"""

import asyncio
from collections.abc import Sequence

from pybroker.base.errors import NotAllowed
from pybroker.base.names import TxnId
from pybroker.client.connection.cluster import Cluster
from pybroker.client.consuming.acks import Place
from pybroker.client.consuming.consumer import Acknowledgeable
from pybroker.client.consuming.subscribing import SubscriptionSpec
from pybroker.client.consuming.topic_consumer import TopicConsumer
from pybroker.client.errors import Timeout
from pybroker.client.messages import Message, MessageId
from pybroker.client.scalable.consumer import SegmentsConsumer, of_segments
from pybroker.client.scalable.group_member import STREAM, Assigned, GroupMember
from pybroker.client.scalable.opening import Opening
from pybroker.client.scalable.received_order import ReceivedOrder, by_part
from pybroker.client.scalable.segment_consumer import SegmentConsumer
from pybroker.client.scalable.watch import LayoutWatch
from pybroker.client.transactions.transaction import Transaction


class StreamConsumer(SegmentsConsumer):
    """Created by Client.create_stream_consumer."""

    def __init__(self, cluster: Cluster, watch: LayoutWatch, spec: SubscriptionSpec) -> None:
        super().__init__(cluster, watch, spec)
        self.received = ReceivedOrder()
        self._begun = False
        self._wanted: dict[str, SubscriptionSpec] = {}
        self._member = GroupMember(
            cluster,
            watch.topic,
            spec.name,
            self.consumer_name(),
            STREAM,
            self._assigned,
            self.queue.fail,
        )

    async def open(self) -> None:
        await self._cluster.open_all(self, [Opening(self._topic, self._open)])

    async def _open(self) -> None:
        await self._layouts.open()
        await self._member.open()
        try:
            async with asyncio.timeout(self._cluster.timeout_s):
                await self._all_open()
        except TimeoutError as error:
            if isinstance(error, Timeout):
                raise
            text = (
                f"Not all segments of {self._topic} were opened within {self._cluster.timeout_s} s"
            )
            raise Timeout(text) from error

    def _assigned(self, segments: Assigned) -> None:
        """A drained segment is read again: the subscription may have been moved back."""
        self._drained.clear()
        spec = self._spec.of_new_partition if self._begun else self._spec
        self._begun = True
        self._wanted = {}
        for topic, buckets in segments.values():
            of_one = of_segments(spec, topic)
            self._wanted[topic] = of_one.sharing(buckets) if buckets else of_one
        self._follow()

    def _follow(self) -> None:
        """A segment that becomes another's, or is shared from now on or no longer, is left once
        everything is acknowledged that was received of it: so a key's messages stay in order.
        """
        parts = dict(self._parts)
        others = {name for name, part in parts.items() if self._is_to_be_left(name, part)}
        for name in others:
            segment = parts[name]
            assert isinstance(segment, SegmentConsumer)
            segment.pause()
        held = {name for name in others if self.received.has_some_of(parts[name])}
        kept = {name: spec for name, spec in self._wanted.items() if name not in others}
        self._want(kept | dict.fromkeys(held, self._spec))
        self._want(dict.fromkeys(held, self._spec) | self._wanted)

    def _is_to_be_left(self, name: str, part: TopicConsumer) -> bool:
        assert isinstance(part, SegmentConsumer)
        spec = self._wanted.get(name)
        return spec is None or part.paused or spec.shares_buckets is not part.shares

    def _acknowledged(self) -> None:
        """Perhaps the last ones of a segment that is to be left."""
        if any(isinstance(each, SegmentConsumer) and each.paused for each in self._parts.values()):
            self._follow()

    # --- receiving --------------------------------------------------------------------------

    async def receive(self, timeout_millis: int | None = None) -> Message:
        message = await super().receive(timeout_millis)
        self.received.add(message)
        return message

    async def batch_receive(self) -> list[Message]:
        messages = await super().batch_receive()
        for each in messages:
            self.received.add(each)
        return messages

    # --- acknowledging ----------------------------------------------------------------------

    async def acknowledge_cumulative(
        self, message: Acknowledgeable, txn: Transaction | None = None
    ) -> None:
        """Acknowledges everything that was received up to this message, of all segments."""
        if txn is None:
            self.acknowledge_cumulative_now(message)
            return
        taken = self.received.take_up_to(message)

        def ended(_: TxnId, committed: bool) -> None:
            if not committed:
                self.received.put_back(taken)

        txn.follow(ended)
        if not taken:
            await self._acknowledge_unknown_in(txn, message)
        for part, ids in by_part(taken).items():
            if self._parts.get(part.topic) is not part:
                continue
            if _shares(part):
                await part.acknowledge_in(txn, ids)
            else:
                part.refuse_amid_chunks(ids[-1].place)
                await part.acknowledge_cumulative_in(txn, ids[-1])
        self._acknowledged()

    async def _acknowledge_unknown_in(self, txn: Transaction, message: Acknowledgeable) -> None:
        part = self._receiver_of(message)
        if _shares(part):
            await part.acknowledge_in(txn, [message])
        else:
            await super().acknowledge_cumulative(message, txn)

    def acknowledge_cumulative_now(self, message: Acknowledgeable) -> None:
        taken = self.received.take_up_to(message)
        if not taken:
            for part, places in self._by_part(message):
                _acknowledge(part, places)
        for part, ids in by_part(taken).items():
            if self._parts.get(part.topic) is part:
                _acknowledge(part, [each.place for each in ids])
        self._acknowledged()

    async def acknowledge(
        self, message: Acknowledgeable | Sequence[Acknowledgeable], txn: Transaction | None = None
    ) -> None:
        """Raises NotAllowed: a stream consumer acknowledges up to a message. Use
        acknowledge_cumulative.
        """
        self.refuse_individual()

    def refuse_individual(self) -> None:
        """Raises NotAllowed: a stream consumer acknowledges everything up to a message."""
        raise NotAllowed(
            f"{self._spec.name} is read by a stream consumer, which acknowledges everything up to "
            "a message: use acknowledge_cumulative, or a queue consumer"
        )

    def negative_acknowledge(self, message: Acknowledgeable) -> None:
        """Raises NotAllowed, as `acknowledge` does."""
        self.refuse_individual()

    def redeliver_unacknowledged_messages(self) -> None:
        self.received.clear()
        super().redeliver_unacknowledged_messages()
        self._acknowledged()

    # --- positions, closing -----------------------------------------------------------------

    async def seek(self, messageid: MessageId | int) -> None:
        """Raises NotAllowed: other processes may consume, too. Seek at the broker."""
        raise NotAllowed(
            f"{self._spec.name} may have consumers elsewhere, so it is moved at the broker: "
            f"pybroker admin scalable-topics seek {self._topic} -s {self._spec.name} -t TIME"
        )

    async def unsubscribe(self) -> None:
        """Raises NotAllowed: other processes may consume, too. Delete the subscription at the
        broker.
        """
        raise NotAllowed(
            f"{self._spec.name} may have consumers elsewhere: close them all, and delete it at the "
            "broker"
        )

    async def close(self) -> None:
        """The other consumers get the segments once these are left."""
        if not self._closed:
            await super().close()
            await self._member.close()


def _shares(part: TopicConsumer) -> bool:
    return isinstance(part, SegmentConsumer) and part.shares


def _acknowledge(part: TopicConsumer, places: Sequence[Place]) -> None:
    """All of them: up to the last one, unless others may have what is before it."""
    if _shares(part):
        part.acknowledge(places)
    else:
        part.acknowledge_cumulative(places[-1])
