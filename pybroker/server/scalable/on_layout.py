"""SCALABLE_TOPIC_LOOKUP and _CLOSE: a topic's layout, now and as it changes."""

from functools import lru_cache

from pybroker.base.errors import NotAllowed, PulsarError, ServiceNotReady
from pybroker.base.listeners import Listener
from pybroker.base.names import TopicName, whole_topic
from pybroker.broker.brokers.ownership import ALONE
from pybroker.broker.brokers.remote_namespaces import check_namespace
from pybroker.broker.scalable.layout import Layout, Segment
from pybroker.broker.scalable.record import MAX_SEGMENTS
from pybroker.security.authorization import Need, Target
from pybroker.server.connections.connection import Connection
from pybroker.server.scalable.v5_session import Kind, measured, v5_session
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb


class LayoutWatch:
    """Tells a client the layout of a scalable topic. Implements Watch."""

    def __init__(self, session: Connection, session_id: int, name: TopicName) -> None:
        self._session = session
        self._id = session_id
        self._name = name
        self.need = Need.LOOKUP, Target.of_topic(name)
        self._controller = "", ""
        self._layout: Layout | None = None
        self._begun = False
        self._told = self._tell  # one object, which identifies the watch

    async def find(self, create: bool) -> None:
        """Raises NotAllowed, TopicNotFound, NotFound (the namespace), ServiceNotReady while the
        topic moves.
        """
        services = self._session.services
        await check_namespace(services.topics, self._name.namespace_name)
        layouts = services.scalable.layouts
        self._layout = await layouts.begin(self._name, create, self._told)
        self._controller = await _controller(self._session, self._name)

    def begin(self) -> None:
        """Sends the layout, and later ones from now on. Raises NotAllowed."""
        assert self._layout is not None
        self._send(self._layout)
        self._begun = True

    def end(self) -> None:
        self._session.services.scalable.layouts.end(self._name, self._told)

    def _tell(self, layout: Layout) -> None:
        self._layout = layout
        if self._begun:
            try:
                self._send(layout)
            except NotAllowed as error:
                self._session.close(str(error))

    def _send(self, layout: Layout) -> None:
        encoded = _encoded(layout, *self._controller)
        most = self._session.services.config.max_message_size
        if len(encoded) > most:
            raise NotAllowed(
                f"The layout of {self._name} has {len(encoded)} bytes, more than a command of "
                f"{most}: use a 4.x client, or a topic with fewer partitions"
            )
        self._session.write(commands.scalable_topic_update(self._id, encoded))


@measured("lookup")
async def lookup(session: Connection, command: pb.CommandScalableTopicLookup) -> None:
    """A repeated request with the same id replaces the watch."""
    watches = v5_session(session)
    name = await session.services.scalable.layouts.meant(whole_topic(command.topic))
    if session.closed:
        return  # nothing would end the watch
    watch, watch_id = LayoutWatch(session, command.session_id, name), command.session_id
    with watches.beginning(Kind.LAYOUT, watch_id, watch):
        await watch.find(command.create_if_missing)
        watches.require(Kind.LAYOUT, watch_id, watch)
        watch.begin()


def failed(session: Connection, command: pb.CommandScalableTopicLookup, error: PulsarError) -> None:
    """Clients take the first answer as final, and ignore later errors. So if the layout may be
    known a little later, only closing the connection makes them ask again.
    """
    if isinstance(error, ServiceNotReady):
        session.close(f"{command.topic[:200]}: {error}")
        return
    answer = pb.CommandScalableTopicUpdate(
        session_id=command.session_id,
        error=error.code,  # type: ignore[arg-type]
        message=error.on_the_wire,
    )
    session.send_command(answer)


async def close(session: Connection, command: pb.CommandScalableTopicClose) -> None:
    """After a lookup of the same id that is still at work: that has an answer first."""
    v5_session(session).remove(Kind.LAYOUT, command.session_id)


async def _controller(session: Connection, name: TopicName) -> tuple[str, str]:
    """The URLs of the broker that divides the topic's segments among consumers; empty if there is
    only one broker: then clients use the URL that they were given. Raises ServiceNotReady.
    """
    services = session.services
    if services.topics.ownership is ALONE:
        return "", ""
    listeners, own = services.listeners, Listener(*session.broker_urls)
    owner = await services.topics.ownership.lookup(name, False)
    if owner is not None:
        listeners, own = owner.listeners, Listener(*owner.address)
    told = listeners.told("", own)
    return told.broker_url, told.broker_url_tls


@lru_cache(maxsize=64)
def _encoded(layout: Layout, controller_url: str, controller_url_tls: str) -> bytes:
    """The update without its session id: the same for every client."""
    dag = pb.ScalableTopicDAG(
        epoch=layout.epoch,
        controller_broker_url=controller_url or None,
        controller_broker_url_tls=controller_url_tls or None,
    )
    if all(each.record is not None for each in layout.segments):
        dag.MergeFromString(b"".join(map(_encoded_segment, layout.segments)))
    else:
        for each in layout.segments:
            _add(dag, layout.made_ms, each)
    resolved = str(layout.name._replace(domain="topic"))
    update = pb.CommandScalableTopicUpdate(dag=dag, resolved_topic_name=resolved)
    return update.SerializePartialToString()


@lru_cache(maxsize=2 * MAX_SEGMENTS)
def _encoded_segment(segment: Segment) -> bytes:
    """Of a scalable topic: a change of a few segments costs little more than these. Joined, such
    bytes are the encoded segments of a layout.
    """
    dag = pb.ScalableTopicDAG()
    _add(dag, 0, segment)
    return dag.SerializePartialToString()


def _add(dag: pb.ScalableTopicDAG, made_ms: int, segment: Segment) -> None:
    added = dag.segments.add(
        segment_id=segment.id,
        hash_start=segment.hash_start,
        hash_end=segment.hash_end,
        state=pb.SEALED if segment.sealed else pb.ACTIVE,
        created_at_epoch=0,
        created_at_ms=made_ms,
    )
    if (record := segment.record) is None:
        added.legacy_topic_name = segment.topic
        return
    if record.ordinary is not None:
        added.legacy_topic_name = record.ordinary
    added.parent_ids.extend(record.parents)
    added.child_ids.extend(record.children)
    added.entry_bucket_splits.extend(record.splits)
    added.created_at_epoch, added.created_at_ms = record.created_epoch, record.created_ms
    if record.sealed:
        added.sealed_at_epoch, added.sealed_at_ms = record.sealed_epoch, record.sealed_ms
