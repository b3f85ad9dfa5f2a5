"""SUBSCRIBE, FLOW, redelivery, SEEK, UNSUBSCRIBE, CLOSE_CONSUMER, GET_LAST_MESSAGE_ID."""

import asyncio
from collections.abc import Awaitable
from typing import Final

from managed_ledger.position import EARLIEST, Position
from pybroker.base.errors import (
    ConsumerAssignError,
    ConsumerNotFound,
    MetadataError,
    NamingError,
    NotAllowed,
    ServiceNotReady,
    SubscriptionNotFound,
    TopicNotFound,
)
from pybroker.base.names import TopicName, check_client
from pybroker.base.runtime import iso_time
from pybroker.broker.client_topics import ServedSubscription, ServedTopic, persistent
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.limits import check_type
from pybroker.broker.policies.table import AUTO_SUBSCRIPTION_CREATION
from pybroker.broker.subscriptions import isolation, subscription_properties
from pybroker.broker.subscriptions.consumer import (
    Consumer,
    KeySharedMode,
    KeySharedPolicy,
    SubscribeRequest,
    SubscriptionType,
)
from pybroker.broker.subscriptions.isolation import Isolation
from pybroker.broker.subscriptions.joining import check_sole_consumer
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.broker.topics import Topics
from pybroker.server.connections.connection import Connection, Rest
from pybroker.server.connections.requests import as_answer
from pybroker.server.connections.slots import ConsumerSlot
from pybroker.server.consuming.on_acknowledge import IDS_A_TURN, pending_ack, position_of
from pybroker.server.publishing.on_producer import stored_schema
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb

_MAX_PERMITS: Final = 2**31 - 1
MAX_HASH_RANGES: Final = 1024  # so many entry buckets may a segment have
_COMPACTED_IS_COMMITTED: Final = (
    "readCompacted shows the last committed message of each key: use it without "
    f"{isolation.PROPERTY}, on a subscription that is read_committed"
)


# -- SUBSCRIBE


async def subscribe(session: Connection, command: pb.CommandSubscribe) -> None:
    if command.consumer_id in session.consumers:
        session.write(commands.success(command.request_id))
        return
    if not command.subscription.strip():
        raise NamingError("The subscription name is empty; set one")
    topics, name = session.services.topics, TopicName.parse(command.topic)
    await topics.settled(name)
    if session.closed:
        # The topic may have been deleted: do not create it again for a closed connection.
        return
    if command.force_topic_creation:
        topic: ServedTopic | None = await topics.require(name)
    else:
        topic = await topics.served(name)
    if topic is None:
        raise TopicNotFound(f"{name} does not exist and this subscription cannot create it")
    if command.HasField("schema"):
        schema = stored_schema(command.schema)
        await topics.schemas.check_consumer(topic.name, schema, topic.idle)
    kind = SubscriptionType(command.subType)
    check_type(topic, kind)
    if topic.subscribe_limit is not None:
        topic.subscribe_limit.check(session.peer, command.consumer_name, command.consumer_id)
    if command.read_compacted:
        _check_compacted(topic, kind)
    consumer = _consumer(session, command)
    subscription = await _subscription(topics, topic, command)
    if command.read_compacted:
        _check_reads_committed(subscription)
    session.add_consumer(topic, subscription, consumer)
    slot = session.consumers[command.consumer_id]
    if command.HasField("consumer_epoch"):
        slot.frames.begin_epoch(command.consumer_epoch)
    try:
        if command.start_message_rollback_duration_sec and not subscription.consumers:
            back_ms = command.start_message_rollback_duration_sec * 1000
            await subscription.seek_to_time(session.services.clock.now_ms() - back_ms)
        await subscription.add_consumer(consumer, kind)
        if not session.closed and session.consumers.get(command.consumer_id) is not slot:
            raise ServiceNotReady("The consumer was closed while it was being added; try again")
    except BaseException:
        session.consumers.pop(command.consumer_id, None)
        # This also deletes a reader's subscription, if it has no other consumer.
        subscription.remove_consumer(consumer)
        raise
    if session.closed:
        session.consumers.pop(command.consumer_id, None)  # `connection_lost` missed it
        subscription.remove_consumer(consumer)
        return
    session.write(commands.success(command.request_id))


def _check_compacted(topic: ServedTopic, kind: SubscriptionType) -> None:
    """Raises NotAllowed unless the topic is persistent, and only one consumer is active."""
    if not isinstance(topic, Topic):
        raise NotAllowed("readCompacted only valid on persistent topics")
    if not kind.single_active:
        raise NotAllowed("readCompacted only allowed on failover or exclusive subscriptions")


def _check_reads_committed(subscription: ServedSubscription) -> None:
    """Raises NotAllowed if the subscription reads uncommitted messages."""
    if (
        isinstance(subscription, Subscription)
        and subscription.isolation is Isolation.READ_UNCOMMITTED
    ):
        raise NotAllowed(_COMPACTED_IS_COMMITTED)


async def _subscription(
    topics: Topics, topic: ServedTopic, command: pb.CommandSubscribe
) -> ServedSubscription:
    start = _start_position(command)
    properties = {pair.key: pair.value for pair in command.subscription_properties}
    check_client("Subscription", command.subscription, properties)
    # Readers of official clients cannot set subscription properties.
    asked = isolation.asked_for(properties, {pair.key: pair.value for pair in command.metadata})
    if command.read_compacted and asked is Isolation.READ_UNCOMMITTED:
        raise NotAllowed(_COMPACTED_IS_COMMITTED)
    if not command.durable:
        return await topic.reader_subscription(command.subscription, start, asked)
    if asked is not None:
        properties[isolation.PROPERTY] = asked.value
    policy = topic.policies[AUTO_SUBSCRIPTION_CREATION]
    may_create = policy["allowAutoSubscriptionCreation"] or not topic.name.persistent
    late = topic.terminated or command.subscription in topic.subscriptions
    subscription = await topic.subscription(
        command.subscription, start, properties, create=may_create
    )
    if topics.is_segment(topic.name):
        await topics.scalable.subscribed(topic, subscription, start, late)
    if command.replicate_subscription_state and isinstance(subscription, Subscription):
        await subscription_properties.replicate(subscription.cursor)
    return subscription


def _start_position(command: pb.CommandSubscribe) -> Position | None:
    """The mark-delete position to begin with: just before the first entry to deliver."""
    if not command.durable and command.HasField("start_message_id"):
        first = position_of(command.start_message_id)
        return EARLIEST if first.ledger_id < 0 else first.before
    if command.initialPosition == pb.CommandSubscribe.Earliest:
        return EARLIEST
    return None


def _consumer(session: Connection, command: pb.CommandSubscribe) -> Consumer:
    properties = {pair.key: pair.value for pair in command.metadata}
    check_client("Consumer", command.consumer_name, properties)
    request = SubscribeRequest(
        consumer_id=command.consumer_id,
        name=command.consumer_name,
        connection=session.number,
        client_version=session.client_version,
        app_id=session.owner,
        takes_any_schema=command.schema.type == pb.Schema.AutoConsume,
        priority_level=command.priority_level,
        properties=properties,
        read_compacted=command.read_compacted,
        key_shared=_key_shared(session, command),
        address=session.peer,
        connected_since_ms=session.services.clock.now_ms(),
        request_id=command.request_id,
        epoch=command.consumer_epoch if command.HasField("consumer_epoch") else None,
        transacts=session.begun.are_expected,
    )
    return Consumer(request, session)


def _key_shared(session: Connection, command: pb.CommandSubscribe) -> KeySharedPolicy | None:
    if not command.HasField("keySharedMeta"):
        return None
    meta = command.keySharedMeta
    if len(meta.hashRanges) > MAX_HASH_RANGES:
        raise NotAllowed(
            f"{len(meta.hashRanges)} hash ranges are too many: merge them to {MAX_HASH_RANGES}"
        )
    mode, ranges = (
        KeySharedMode(meta.keySharedMode),
        tuple((r.start, r.end) for r in meta.hashRanges),
    )
    if meta.entry_bucket_dispatch:
        if mode is not KeySharedMode.STICKY:
            raise ConsumerAssignError("Entry buckets need STICKY: name all buckets of the segment")
        violations = session.services.topics.scalable.measures.violations
        return KeySharedPolicy(mode, ranges, violations=violations)
    return KeySharedPolicy(mode, ranges, meta.allowOutOfOrderDelivery)


# -- FLOW, and redelivery


def flow(session: Connection, command: pb.CommandFlow) -> None:
    slot = session.consumers.get(command.consumer_id)
    if slot is not None and 0 < command.messagePermits <= _MAX_PERMITS:
        now_ms = session.services.clock.now_ms()
        slot.consumer.times.flow(now_ms)
        slot.subscription.times.flow(now_ms)
        slot.subscription.flow(slot.consumer, command.messagePermits)


def redeliver(
    session: Connection, command: pb.CommandRedeliverUnacknowledgedMessages
) -> Rest | None:
    slot = session.consumers.get(command.consumer_id)
    if slot is None:
        return None
    if command.HasField("consumer_epoch") and isinstance(slot.subscription, Subscription):
        lives = slot.subscription.reader.lives
        noted = None if lives is None else lives.asks(slot.consumer.life, command.consumer_epoch)
        if noted is not None:
            return _redeliver_once(noted, session, slot, command)
    return _redeliver(session, slot, command)


async def _redeliver_once(
    noted: Awaitable[None],
    session: Connection,
    slot: ConsumerSlot,
    command: pb.CommandRedeliverUnacknowledgedMessages,
) -> None:
    await noted
    if session.consumers.get(command.consumer_id) is slot:
        rest = _redeliver(session, slot, command)
        if rest is not None:
            await rest


def _redeliver(
    session: Connection, slot: ConsumerSlot, command: pb.CommandRedeliverUnacknowledgedMessages
) -> Rest | None:
    drops = False
    if command.HasField("consumer_epoch"):
        slot.frames.begin_epoch(command.consumer_epoch)
        drops = slot.consumer.begins_epoch(command.consumer_epoch)
    first = [position_of(message_id) for message_id in command.message_ids[:IDS_A_TURN]]
    slot.subscription.redeliver(slot.consumer, first or None, drops)
    if len(first) == len(command.message_ids) or not slot.subscription.redelivers_by_id:
        return None
    return _redeliver_rest(session, slot, command)


async def _redeliver_rest(
    session: Connection, slot: ConsumerSlot, command: pb.CommandRedeliverUnacknowledgedMessages
) -> None:
    for start in range(IDS_A_TURN, len(command.message_ids), IDS_A_TURN):
        await asyncio.sleep(0)
        if session.consumers.get(command.consumer_id) is slot:
            ids = command.message_ids[start : start + IDS_A_TURN]
            slot.subscription.redeliver(slot.consumer, [position_of(at) for at in ids])


# -- SEEK, UNSUBSCRIBE, CLOSE_CONSUMER


def _slot(session: Connection, consumer_id: int) -> ConsumerSlot:
    """Raises MetadataError, as Apache Pulsar does."""
    slot = session.consumers.get(consumer_id)
    if slot is None:
        raise MetadataError(f"Consumer not found: {consumer_id} is not connected here")
    return slot


async def seek(session: Connection, command: pb.CommandSeek) -> None:
    slot = _slot(session, command.consumer_id)
    if command.HasField("message_id"):
        await slot.subscription.seek(*await _place(slot, command.message_id))
    elif command.HasField("message_publish_time"):
        await slot.subscription.seek_to_time(command.message_publish_time)
    else:
        raise MetadataError("Message id and message publish time were not present")
    topics = session.services.topics
    if topics.is_segment(slot.topic.name):
        await topics.scalable.rewound(slot.topic.name.scalable_name, slot.subscription.name)
    session.write(commands.success(command.request_id))


async def _place(slot: ConsumerSlot, message_id: pb.MessageIdData) -> tuple[Position, int, int]:
    """The arguments of Subscription.seek. The Java client names part of a batch by an ack_set."""
    if not slot.topic.policies.config.acknowledgment_at_batch_index_level_enabled:
        return position_of(message_id), 0, 0
    place = await pending_ack(slot.topic, message_id)
    return place.position, place.still_unacked or 0, place.batch_size


async def unsubscribe(session: Connection, command: pb.CommandUnsubscribe) -> None:
    slot = _slot(session, command.consumer_id)
    check_sole_consumer(slot.subscription, slot.consumer, command.force)
    session.consumers.pop(command.consumer_id)
    slot.subscription.remove_consumer(slot.consumer)
    try:
        if slot.subscription.durable:  # a reader's is deleted with its consumer
            await slot.topic.delete_subscription(slot.subscription.name)
    except Exception as error:
        session.write(commands.error(command.request_id, as_answer(error)))
        # The subscription still exists: the client reconnects its consumer.
        if not isinstance(error, SubscriptionNotFound):
            session.tell_consumer_closed(slot.consumer)
    else:
        session.write(commands.success(command.request_id))


async def close_consumer(session: Connection, command: pb.CommandCloseConsumer) -> None:
    slot = session.consumers.pop(command.consumer_id, None)
    if slot is not None:
        # Without a FLOW, SUBSCRIBE may have timed out: the client keeps the consumer and retries.
        slot.consumer.closed_by_client = slot.consumer.times.first_flow_ms > 0
        slot.subscription.remove_consumer(slot.consumer)
    session.write(commands.success(command.request_id))


# -- queries


async def get_last_message_id(session: Connection, command: pb.CommandGetLastMessageId) -> None:
    slot = _slot(session, command.consumer_id)
    limit = None
    if isinstance(slot.subscription, Subscription):
        limit = slot.subscription.reader.limit
    position, batch_index = await slot.topic.last_message_id(limit)
    marked = slot.subscription.mark_delete_position
    if isinstance(slot.subscription, Subscription) and slot.consumer.read_compacted:
        compaction = persistent(slot.topic).compaction
        position, batch_index = compaction.last_message(position, batch_index)
        marked = slot.subscription.cursor.reached
    if position.entry_id < 0:
        position = EARLIEST  # (-1, -1): clients compare it with what they have read
    answer = pb.CommandGetLastMessageIdResponse(
        request_id=command.request_id,
        last_message_id=_message_id(slot.topic, position, batch_index),
        consumer_mark_delete_position=_message_id(slot.topic, marked, -1),
    )
    session.send_command(answer)


def _message_id(topic: ServedTopic, position: Position, batch_index: int) -> pb.MessageIdData:
    return pb.MessageIdData(
        ledgerId=position.ledger_id & 0xFFFF_FFFF_FFFF_FFFF,
        entryId=position.entry_id & 0xFFFF_FFFF_FFFF_FFFF,
        partition=topic.name.partition,
        batch_index=batch_index,
    )


async def consumer_stats(session: Connection, command: pb.CommandConsumerStats) -> None:
    """Without rates: the broker does not keep them between two requests."""
    slot = session.consumers.get(command.consumer_id)
    if slot is None:
        raise ConsumerNotFound(f"Consumer {command.consumer_id} not found")
    consumer = slot.consumer
    answer = pb.CommandConsumerStatsResponse(
        request_id=command.request_id,
        consumerName=consumer.name,
        availablePermits=max(0, consumer.permits),
        unackedMessages=consumer.unacked.messages,
        address=consumer.request.address,
        blockedConsumerOnUnackedMsgs=consumer.blocked,
        connectedSince=iso_time(consumer.request.connected_since_ms),
        type=slot.subscription.kind.name.title() if slot.subscription.kind is not None else "",
        msgBacklog=slot.subscription.backlog,
    )
    session.send_command(answer)
