"""PRODUCER and CLOSE_PRODUCER. How SENDs get to the topic is in `sends`."""

from typing import Final

from managed_ledger.position import EARLIEST
from pybroker.base.errors import NotAllowed, PulsarError, QuotaExceededException, ServiceNotReady
from pybroker.base.names import TopicName, check_client
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.persistent.producers import AccessMode, Granted, Producer, ProducerState
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.limits import check_encrypts
from pybroker.broker.policies.table import AUTO_SUBSCRIPTION_CREATION
from pybroker.broker.schemas.compatibility import StoredSchema
from pybroker.broker.schemas.registry import version_bytes
from pybroker.server.connections.connection import Connection
from pybroker.server.connections.requests import COMES_BACK
from pybroker.server.transactions import fencing
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb

# If a producer is too fast, up to this many of its bytes wait while the broker still reads its
# connection, so that it sees a PING after them.
_HELD_WHILE_READING_BYTES: Final = 64 * 1024


async def producer(session: Connection, command: pb.CommandProducer) -> None:
    slot = session.producers.get(command.producer_id)
    if slot is not None:  # repeated request
        _answer(session, command, slot.topic, slot.producer, None)
        return
    topics, name = session.services.topics, TopicName.parse(command.topic)
    await topics.settled(name)
    if session.closed:
        # The topic may have been deleted: do not create it again for a closed connection.
        return
    if name.persistent and (why := session.services.storage_refusal()) is not None:
        # After this error, official clients fail their pending messages in order and tell the
        # application. After any other error they reconnect forever.
        raise QuotaExceededException(why)
    topic = await topics.require(name)
    check_encrypts(topic, command.encrypted)
    schema_version = None
    if command.HasField("schema"):
        schema_version = await topics.schemas.add(name, stored_schema(command.schema))
    else:
        topics.schemas.check_without(name)
    if command.initial_subscription_name:  # the Go client sends an empty one
        await _create_initial_subscription(topic, command.initial_subscription_name)
    new = _new_producer(session, command)
    joined = await fencing.joined(session, new)
    if session.closed:
        return
    await topic.add_producer(new, _granter(session, command, topic, new, schema_version))
    if session.closed or (joined is not None and joined.is_over):
        await topic.producers.remove(new)
        if joined is not None:
            joined.require_current()
        return
    session.add_producer(topic, new)
    session.producers[new.producer_id].transactional_session = joined
    _answer(session, command, topic, new, schema_version)


async def _create_initial_subscription(topic: ServedTopic, name: str) -> None:
    """Starts at the earliest message, so that consumers get everything that the producer sends.

    Raises NotAllowed. Source: PIP-124.
    """
    if not isinstance(topic, Topic) or name in topic.subscriptions:
        return
    if not topic.policies[AUTO_SUBSCRIPTION_CREATION]["allowAutoSubscriptionCreation"]:
        raise NotAllowed(
            "Could not create the initial subscription due to the auto subscription creation is "
            "not allowed."
        )
    await topic.subscription(name, EARLIEST, {}, create=True)


def _new_producer(session: Connection, command: pb.CommandProducer) -> Producer:
    services = session.services
    properties = {pair.key: pair.value for pair in command.metadata}
    check_client("Producer", command.producer_name, properties)
    return Producer(
        producer_id=command.producer_id,
        name=command.producer_name or services.new_producer_name(),
        owner=session,
        access_mode=AccessMode(command.producer_access_mode),
        epoch=command.epoch,
        user_provided_name=command.user_provided_producer_name,
        encrypts=command.encrypted,
        topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
        address=session.peer,
        client_version=session.client_version,
        supports_partial=session.supports_partial_producer,
        properties=properties,
        connected_since_ms=services.clock.now_ms(),
    )


def _granter(
    session: Connection,
    command: pb.CommandProducer,
    topic: ServedTopic,
    new: Producer,
    schema_version: int | None,
) -> Granted:
    """Answers a waiting producer a second time, under the same request id, once it may write or
    never will.
    """

    def granted(error: PulsarError | None) -> None:
        if isinstance(error, ServiceNotReady) and session.client_version.startswith(COMES_BACK):
            session.close_producer(new, str(error))
        elif error is not None:
            session.forget_producer(new)
            session.write(commands.error(command.request_id, error))
        elif session.closed:
            topic.tasks.start(topic.producers.remove(new), "producer gone")
        else:
            _answer(session, command, topic, new, schema_version)

    return granted


def _answer(
    session: Connection,
    command: pb.CommandProducer,
    topic: ServedTopic,
    producer: Producer,
    schema_version: int | None,
) -> None:
    deduplication = topic.deduplication
    answer = pb.CommandProducerSuccess(
        request_id=command.request_id,
        producer_name=producer.name,
        last_sequence_id=deduplication.last_sequence_id(producer.name) if deduplication else -1,
        schema_version=version_bytes(schema_version),
        producer_ready=producer.state is ProducerState.WRITING,
    )
    if (topic_epoch := fencing.topic_epoch_to_tell(producer)) is not None:
        answer.topic_epoch = topic_epoch
    session.send_command(answer)


def stored_schema(schema: pb.Schema) -> StoredSchema:
    # The type stub confuses KeyValue with Schema.Type's value of that name.
    properties = {pair.key: pair.value for pair in schema.properties}  # type: ignore[attr-defined]
    return StoredSchema(schema.name, schema.type, schema.schema_data, properties)


async def close_producer(session: Connection, command: pb.CommandCloseProducer) -> None:
    slot = session.producers.get(command.producer_id)
    if slot is not None:
        await slot.sent_at_rate()
        session.forget_producer(slot.producer)
        await slot.all_answered()
        await slot.topic.producers.remove(slot.producer)
    session.write(commands.success(command.request_id))
