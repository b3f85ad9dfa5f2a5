"""WATCH_SCALABLE_TOPICS and its close: the scalable topics of a namespace, now and later.

Ordinary topics are never listed.
"""

from collections.abc import Sequence

from pybroker.base.errors import NotAllowed
from pybroker.broker.brokers.remote_namespaces import check_namespace
from pybroker.broker.topic_lists.lists import TopicList
from pybroker.security.authorization import Need, Target
from pybroker.server.connections.connection import Connection
from pybroker.server.scalable.v5_session import Kind, measured, v5_session
from pybroker.wire import pulsar_api_pb2 as pb


class TopicsWatch:
    """Tells a client which scalable topics a namespace has. Implements Watch."""

    def __init__(self, session: Connection, watch_id: int, namespace: str) -> None:
        self._session = session
        self._id = watch_id
        self._namespace = namespace
        self.need = Need.USE_NAMESPACE, Target.of_namespace(namespace)
        self._told = self._tell  # one object, which identifies the watch

    async def find(self, wanted: dict[str, str]) -> TopicList:
        services = self._session.services
        await check_namespace(services.topics, self._namespace)
        return await services.scalable.watches.begin(self._namespace, wanted, self._told)

    def begin(self, there: TopicList, known_hash: str) -> None:
        """Sends the snapshot, unless the client has it."""
        if there.hash != known_hash:
            snapshot = pb.ScalableTopicsSnapshot(topics=there.names)
            self._send(pb.CommandWatchScalableTopicsUpdate(watch_id=self._id, snapshot=snapshot))

    def end(self) -> None:
        self._session.services.scalable.watches.end(self._told)

    def _tell(self, added: Sequence[str], removed: Sequence[str]) -> None:
        diff = pb.ScalableTopicsDiff(added=added, removed=removed)
        self._send(pb.CommandWatchScalableTopicsUpdate(watch_id=self._id, diff=diff))

    def _send(self, update: pb.CommandWatchScalableTopicsUpdate) -> None:
        self._session.send_command(update)


@measured("watch_topics")
async def watch(session: Connection, command: pb.CommandWatchScalableTopics) -> None:
    """A repeated request with the same id replaces the watch."""
    watches = v5_session(session)
    if session.closed:
        return  # nothing would end the watch
    begun = TopicsWatch(session, command.watch_id, command.namespace)
    wanted = {pair.key: pair.value for pair in command.property_filters}
    with watches.beginning(Kind.TOPICS, command.watch_id, begun):
        there = await begun.find(wanted)
        watches.require(Kind.TOPICS, command.watch_id, begun)
        _check_size(session, command.namespace, there)
        begun.begin(there, command.current_hash)


def _check_size(session: Connection, namespace: str, there: TopicList) -> None:
    """Raises NotAllowed if the list does not fit into one command."""
    most = session.services.config.max_message_size
    if sum(map(len, there.names)) + 8 * len(there.names) > most:
        raise NotAllowed(
            f"The names of the {len(there.names)} scalable topics of {namespace} do not fit into a "
            f"command of {most} bytes: ask for some by their properties"
        )


async def close(session: Connection, command: pb.CommandWatchScalableTopicsClose) -> None:
    """After a request of the same id that is still at work."""
    v5_session(session).remove(Kind.TOPICS, command.watch_id)
