"""A consumer of a group, among which the controller of the topic divides the segments.

The controller is the broker that serves the topic. A member is known by its name: while it is away
it keeps its segments for a while. Source: PIP-460.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pybroker.client.connection.attachment import Attachment
from pybroker.client.connection.cluster import Cluster
from pybroker.client.connection.connection import Connection
from pybroker.wire import pulsar_api_pb2 as pb

STREAM: Final = pb.STREAM
CHECKPOINT: Final = pb.CHECKPOINT


class Share(NamedTuple):
    """A segment, or with entry buckets a part of it: others have it, too."""

    topic: str
    buckets: tuple[tuple[int, int], ...]  # all of the segment; empty if nobody else has it


Assigned = Mapping[int, Share]  # by the numbers of the segments


class GroupMember:
    """Implements WatchEnd and Attachment's Member."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        group: str,
        name: str,
        kind: "pb.ScalableConsumerType",
        told: Callable[[Assigned], None],
        ended: Callable[[Exception], None],
    ) -> None:
        """`told` is called with all segments that are assigned, at first and at each change;
        `ended` with the error if there will be no more.
        """
        self._cluster = cluster
        self._topic = topic
        self._group = group
        self._name = name
        self._kind = kind
        self._told, self._ended = told, ended
        self._id = 0  # of each registration another one: updates of former ones find nobody
        self._is_registering = False
        self._update: pb.CommandScalableTopicAssignmentUpdate | None = None
        self._attachment = Attachment(cluster, topic, self)

    async def open(self) -> None:
        await self._attachment.open(self._cluster.timeout_s)

    async def register(self, connection: Connection) -> None:
        self._id, self._is_registering, self._update = next(self._cluster.ids), True, None
        connection.watches[self._id] = self
        try:
            answer = await connection.request(
                pb.CommandScalableTopicSubscribe(
                    topic=self._topic,
                    subscription=self._group,
                    consumer_name=self._name,
                    consumer_id=self._id,
                    consumer_type=self._kind,
                ),
                self._cluster.timeout_s,
            )
        except BaseException:
            self.leave(connection)
            raise
        finally:
            self._is_registering = False
        self._take((self._update or answer).assignment)

    def on_update(self, update: pb.CommandScalableTopicAssignmentUpdate) -> None:
        """Updates come after the answer, perhaps right behind it."""
        if self._is_registering:
            self._update = update
        else:
            self._take(update.assignment)

    def _take(self, assignment: pb.ScalableConsumerAssignment) -> None:
        self._told(
            {
                each.segment_id: Share(
                    each.segment_topic, tuple((of.start, of.end) for of in each.bucket_ranges)
                )
                for each in assignment.segments
            }
        )

    def detached(self) -> None:
        self._attachment.lost()

    def leave(self, connection: Connection) -> None:
        connection.watches.pop(self._id, None)
        if not connection.closed:
            request = pb.CommandScalableTopicUnsubscribe(consumer_id=self._id, request_id=0)
            connection.post(request)

    def interrupted(self) -> None:
        """It keeps its segments."""

    def failed(self, error: Exception) -> None:
        self._ended(error)

    async def close(self) -> None:
        """The others get its segments."""
        connection = self._attachment.close()
        if connection is not None and not connection.closed:
            connection.watches.pop(self._id, None)
            request = pb.CommandScalableTopicUnsubscribe(consumer_id=self._id)
            await connection.request(request, self._cluster.timeout_s)
