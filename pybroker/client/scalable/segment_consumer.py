"""The consumer of one segment: it ends when the segment is drained, or was pruned meanwhile."""

from typing import Protocol

from pybroker.base.errors import TopicNotFound
from pybroker.client.connection.cluster import Cluster
from pybroker.client.connection.connection import Connection
from pybroker.client.consuming.receive_queue import ReceiveQueue
from pybroker.client.consuming.subscribing import SubscriptionSpec
from pybroker.client.consuming.topic_consumer import TopicConsumer
from pybroker.wire.message_run import MessageRun


class Owner(Protocol):
    """What a segment's consumer tells the consumer of the topic."""

    def drained(self, part: TopicConsumer) -> None:
        """The segment is sealed, and everything is acknowledged."""
        ...

    def gone(self, part: TopicConsumer) -> None:
        """The segment does not exist any more."""
        ...

    def interrupted(self) -> None:
        """The broker ended the registration: it crashed, or moved the subscription."""
        ...


class SegmentConsumer(TopicConsumer):
    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        spec: SubscriptionSpec,
        queue: ReceiveQueue,
        queue_size: int,
        owner: Owner,
    ) -> None:
        self._reached_end = False
        self.paused = False
        self._owner = owner
        super().__init__(cluster, topic, spec, queue, queue_size)

    @property
    def reached_end(self) -> bool:
        return self._reached_end

    @reached_end.setter
    def reached_end(self, reached: bool) -> None:
        """The broker says so once everything is acknowledged, also in transactions."""
        self._reached_end = reached
        if reached:
            self._owner.drained(self)

    @property
    def shares(self) -> bool:
        """Whether others have the segment, too: then each message is acknowledged by itself."""
        return self._spec.shares_buckets

    def pause(self) -> None:
        """Nothing more of it is delivered: what is dropped comes again, here or elsewhere."""
        self.paused = True
        self._queue.discard(self)

    def on_messages(self, run: MessageRun) -> None:
        if not self.paused:
            super().on_messages(run)

    async def register(self, connection: Connection) -> None:
        """The broker delivers the entry before a reader's start once more. It is acknowledged, or
        the segment's end would never be reached.
        """
        await super().register(connection)
        start = self._start
        if start is None or start.inclusive or start.is_vague or start.amid_chunks_from:
            return
        _, entry_id, index, size = place = start.message_id.place
        if entry_id >= 0 and (index < 0 or index == size - 1):
            self._acks.add_cumulative(place)

    def interrupted(self) -> None:
        super().interrupted()
        self._owner.interrupted()

    def failed(self, error: Exception) -> None:
        if isinstance(error, TopicNotFound):
            self._end(error)
            self._owner.gone(self)
        else:
            super().failed(error)
