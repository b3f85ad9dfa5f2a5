"""A stream consumer: the messages of each key in order, acknowledged up to one of them.

The controller divides the segments among the consumers of a subscription. It gives a segment away
only when those before it are drained, so the order of a key's messages survives splits and merges.
"""

import asyncio
from collections.abc import Sequence

from pybroker.base.errors import NotAllowed
from pybroker.base.names import TxnId
from pybroker.client.connection.cluster import Cluster
from pybroker.client.consuming.consumer import Acknowledgeable
from pybroker.client.consuming.subscribing import SubscriptionSpec
from pybroker.client.errors import Timeout
from pybroker.client.messages import Message, MessageId
from pybroker.client.scalable.consumer import SegmentsConsumer, of_segments
from pybroker.client.scalable.group_member import STREAM, Assigned, GroupMember
from pybroker.client.scalable.opening import Opening
from pybroker.client.scalable.received_order import ReceivedOrder, last_of_each
from pybroker.client.scalable.watch import LayoutWatch
from pybroker.client.transactions.transaction import Transaction


class StreamConsumer(SegmentsConsumer):
    """Created by Client.create_stream_consumer."""

    def __init__(self, cluster: Cluster, watch: LayoutWatch, spec: SubscriptionSpec) -> None:
        super().__init__(cluster, watch, spec)
        self.received = ReceivedOrder()
        self._begun = False
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
        self._want({topic: of_segments(spec, topic) for topic in segments.values()})

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
        places = last_of_each(taken)
        if not places:
            await super().acknowledge_cumulative(message, txn)
        for part, place in places.items():
            if self._parts.get(part.topic) is part:
                part.refuse_amid_chunks(place.place)
                await part.acknowledge_cumulative_in(txn, place)

    def acknowledge_cumulative_now(self, message: Acknowledgeable) -> None:
        taken = last_of_each(self.received.take_up_to(message))
        if not taken:
            super().acknowledge_cumulative_now(message)
        for part, message_id in taken.items():
            if self._parts.get(part.topic) is part:
                part.acknowledge_cumulative(message_id.place)

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
