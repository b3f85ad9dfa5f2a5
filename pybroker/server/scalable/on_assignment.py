"""SCALABLE_TOPIC_SUBSCRIBE and _UNSUBSCRIBE: a consumer of a group, and the segments that it gets.

The answer to a registration comes first, then updates: whatever happens within the registration
is in the answer.
"""

from pybroker.base.names import check_client, check_subscription_name, whole_topic
from pybroker.broker.brokers.remote_namespaces import check_namespace
from pybroker.broker.scalable.buckets import bucket_ranges
from pybroker.broker.scalable.controllers import Assignment, GroupKey, Member
from pybroker.security.authorization import Need, Target
from pybroker.server.connections.connection import Connection
from pybroker.server.scalable.v5_session import Kind, measured, v5_session
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb


class ConsumerWatch:
    """Tells a stream consumer which segments are its own. Implements Watch."""

    def __init__(self, session: Connection, consumer_id: int, key: GroupKey, name: str) -> None:
        self._session = session
        self._id = consumer_id
        self._key = key
        self.need = Need.CONSUME, Target.of_topic(key.topic, key.subscription)
        self._member = Member(name, self._tell, session.close)

    async def register(self) -> Assignment:
        """Raises NotServedHere, TooManyRequests, and what `Layouts.begin` raises."""
        services = self._session.services
        await check_namespace(services.topics, self._key.topic.namespace_name)
        return await services.scalable.controllers.register(self._key, self._member)

    def unregister(self) -> None:
        self._session.services.scalable.controllers.unregister(self._key, self._member)

    def end(self) -> None:
        """The connection is lost."""
        self._session.services.scalable.controllers.lost(self._key, self._member)

    def _tell(self, assignment: Assignment) -> None:
        update = pb.CommandScalableTopicAssignmentUpdate(
            consumer_id=self._id, assignment=_encoded(assignment)
        )
        self._session.send_command(update)


@measured("subscribe")
async def subscribe(session: Connection, command: pb.CommandScalableTopicSubscribe) -> None:
    watches = v5_session(session)
    name = await session.services.scalable.layouts.meant(whole_topic(command.topic))
    check_subscription_name(command.subscription)
    check_client("Consumer", command.consumer_name, {})
    if session.closed:
        return  # nothing would end the registration
    key = GroupKey(name, command.subscription, command.consumer_type)
    consumer_id = command.consumer_id
    watch = ConsumerWatch(session, consumer_id, key, command.consumer_name)
    with watches.beginning(Kind.CONSUMER, consumer_id, watch):
        assignment = await watch.register()
        watches.require(Kind.CONSUMER, consumer_id, watch)
    answer = pb.CommandScalableTopicSubscribeResponse(
        request_id=command.request_id, assignment=_encoded(assignment)
    )
    session.send_command(answer)


@measured("unsubscribe")
async def unsubscribe(session: Connection, command: pb.CommandScalableTopicUnsubscribe) -> None:
    """An unknown consumer is one that has left."""
    watch = v5_session(session).remove(Kind.CONSUMER, command.consumer_id)
    if isinstance(watch, ConsumerWatch):
        watch.unregister()
    session.write(commands.success(command.request_id))


def _encoded(assignment: Assignment) -> pb.ScalableConsumerAssignment:
    encoded = pb.ScalableConsumerAssignment(layout_epoch=assignment.epoch)
    for each in assignment.segments:
        added = encoded.segments.add(
            segment_id=each.id,
            hash_start=each.hash_start,
            hash_end=each.hash_end,
            segment_topic=each.topic,
        )
        if each.id in assignment.shared:
            for start, end in bucket_ranges(each.bucket_splits):
                added.bucket_ranges.add(start=start, end=end)
    return encoded
