"""Tells a topic's layout, now and whenever it changes, over whichever connection there is.

The first update after the request is its answer. Source: PIP-460.
"""

import asyncio
from collections.abc import Callable

from pybroker.base.errors import NotAllowed
from pybroker.base.names import whole_topic
from pybroker.client.connection.attachment import Attachment
from pybroker.client.connection.cluster import Cluster
from pybroker.client.connection.connection import Connection
from pybroker.client.errors import ConnectError, PulsarException, Timeout, from_wire
from pybroker.client.scalable.layout import Layout, layout_of
from pybroker.wire import pulsar_api_pb2 as pb


def _ignore(*_: object) -> None:
    """Nobody listens yet."""


class LayoutWatch:
    """Implements WatchEnd and Attachment's Member."""

    def __init__(self, cluster: Cluster, topic: str, create: bool = True) -> None:
        """`create`: the broker may create the topic if it is missing. Raises InvalidTopicName."""
        self.topic = str(whole_topic(topic))
        self.layout: Layout | None = None
        self._cluster = cluster
        self._create = create
        self._id = next(cluster.ids)
        self._attachment = Attachment(cluster, self.topic, self)
        self._first: asyncio.Future[pb.CommandScalableTopicUpdate] | None = None
        self._second: pb.CommandScalableTopicUpdate | None = None  # came right behind the first
        # Called with each later layout, and with the error if there will be no more.
        self.told: Callable[[Layout], None] = _ignore
        self.ended: Callable[[Exception], None] = _ignore

    async def open(self) -> Layout:
        """Raises TopicNotFound, NotAllowed if the broker has no scalable topics."""
        await self._attachment.open(self._cluster.timeout_s)
        assert self.layout is not None
        return self.layout

    async def register(self, connection: Connection) -> None:
        if not connection.has_scalable_topics:
            raise NotAllowed(
                f"{self.topic}: this broker has no scalable topics; pybroker has them, and Apache "
                "Pulsar from 5.0 on, unless scalableTopicsEnabled is false"
            )
        self._first, self._second = asyncio.get_running_loop().create_future(), None
        connection.watches[self._id] = self
        try:
            connection.post(
                pb.CommandScalableTopicLookup(
                    session_id=self._id, topic=self.topic, create_if_missing=self._create
                )
            )
            async with asyncio.timeout(self._cluster.timeout_s):
                update = await self._first
            if update.HasField("error"):
                raise from_wire(update.error, update.message)
        except BaseException as error:
            connection.watches.pop(self._id, None)
            if isinstance(error, TimeoutError) and not isinstance(error, PulsarException):
                text = f"{connection.address} did not tell the layout of {self.topic} in time"
                raise Timeout(text) from None
            raise
        finally:
            self._first = None
        self._create = False  # it is not created again once it was there
        self._take(update)
        if self._second is not None:
            self._take(self._second)

    def on_update(self, update: pb.CommandScalableTopicUpdate) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(update)
        elif update.HasField("error"):
            return
        elif self._first is not None:
            self._second = update
        else:
            self._take(update)

    def _take(self, update: pb.CommandScalableTopicUpdate) -> None:
        """Of whatever epoch: a topic may be deleted and created again."""
        self.layout = layout_of(update)
        self.told(self.layout)

    def detached(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_exception(ConnectError(f"The connection for {self.topic} broke"))
        self._attachment.lost()

    def look_again(self) -> None:
        """Asks for the layout anew; `ended` is called if the topic is gone."""
        if (connection := self._attachment.connection) is not None:
            self.leave(connection)
            self._attachment.lost()

    def leave(self, connection: Connection) -> None:
        connection.watches.pop(self._id, None)
        if not connection.closed:
            connection.post(pb.CommandScalableTopicClose(session_id=self._id))

    def interrupted(self) -> None:
        """Segments go on as they are."""

    def failed(self, error: Exception) -> None:
        self.ended(error)

    async def close(self) -> None:
        self.told, self.ended = _ignore, _ignore
        if (connection := self._attachment.close()) is not None:
            self.leave(connection)
