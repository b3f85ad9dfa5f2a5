"""PRODUCER, SEND, CLOSE_PRODUCER.

The hot path is `send`: a run of SENDs goes to its topic unchanged, and one buffer of receipts comes
back when its group commit is durable.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from managed_ledger.position import EARLIEST, Position
from pybroker.base.errors import (
    ChecksumError,
    NotAllowed,
    PersistenceError,
    PulsarError,
    QuotaExceededException,
    ServiceNotReady,
    TopicTerminated,
)
from pybroker.base.names import TopicName, TxnId, check_client
from pybroker.broker.deduplication import (
    Copy,
    Deduplication,
    Duplicate,
    Later,
    New,
    Refused,
    Rest,
    Taken,
)
from pybroker.broker.policies.gate import Gate
from pybroker.broker.policies.limits import check_encrypts
from pybroker.broker.policies.table import AUTO_SUBSCRIPTION_CREATION
from pybroker.broker.policies.throttle import Throttle
from pybroker.broker.producers import AccessMode, Granted, Producer, ProducerState
from pybroker.broker.schemas.compatibility import StoredSchema
from pybroker.broker.schemas.registry import version_bytes
from pybroker.broker.served import ServedTopic
from pybroker.broker.topic import Topic
from pybroker.server import fencing
from pybroker.server.connection import Connection
from pybroker.server.held_runs import HOLD_S, HeldRuns
from pybroker.server.joining_sends import hold_until, joining
from pybroker.server.requests import COMES_BACK, as_final
from pybroker.server.slots import ProducerSlot
from pybroker.server.transaction_room import room_for
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import BadChecksum, SendRun

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
    session.producers[new.producer_id].session = joined
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
    session.send_command(
        pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS, producer_success=answer)
    )


def stored_schema(schema: pb.Schema) -> StoredSchema:
    # The type stub confuses KeyValue with Schema.Type's value of that name.
    properties = {pair.key: pair.value for pair in schema.properties}  # type: ignore[attr-defined]
    return StoredSchema(schema.name, schema.type, schema.schema_data, properties)


async def close_producer(session: Connection, command: pb.CommandCloseProducer) -> None:
    slot = session.producers.get(command.producer_id)
    if slot is not None:
        if slot.held is not None:
            await _sent_at_rate(slot)
        session.forget_producer(slot.producer)
        await _all_answered(slot)
        await slot.topic.producers.remove(slot.producer)
    session.write(commands.success(command.request_id))


async def _sent_at_rate(slot: ProducerSlot) -> None:
    """Waits until earlier messages that the publish rate holds are sent, for at most HOLD_S."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HOLD_S):
            while slot.held is not None and slot.held.by_rate:
                await slot.held.taken()


async def _all_answered(slot: ProducerSlot) -> None:
    if slot.behind is not None:
        slot.behind.append((answered := asyncio.Event()).set)
        await answered.wait()


# -- SEND


def send(session: Connection, run: SendRun) -> None:
    slot = session.producers.get(run.producer_id)
    if slot is None:
        return  # just closed by the broker; the client resends after reconnecting
    joined = None
    if slot.session is not None and not session.services.sessions.may_publish(slot.session):
        return  # the broker is about to close it: as above
    if run.txn_id is not None or slot.session is not None:
        try:
            if slot.session is not None:
                joined = fencing.bound(session, slot.session, run.txn_id)
            joins = session.services.coordinators.joining.are_any or session.login is not None
            if run.txn_id is not None and joined is None and joins:
                joined = joining(session, slot, run.txn_id)
        except PulsarError as error:
            refuse_in_order(session, slot, run, error)
            return
    if slot.held is not None:
        slot.held.keep(run)
        if slot.held.by_rate:
            _rest_if_much(session, slot, slot.held)
    elif joined is not None:
        hold_until(
            session,
            slot,
            run,
            joined,
            partial(_go_on_at_rate, session, slot),
            partial(
                _start_over, session, slot, "adding its topic to the transaction took too long"
            ),
        )
    elif run.txn_id is None:
        _send_on(session, slot, run)
    else:
        _send_within_limits(session, slot, run, run.txn_id)


def _send_within_limits(
    session: Connection, slot: ProducerSlot, run: SendRun, txn_id: TxnId
) -> None:
    """Refuses the excess as the gate does: clients report it to the application."""
    fits, excess = room_for(session, slot.topic, txn_id, run)
    if fits:
        _send_on(session, slot, run if excess is None else run.part(0, fits))
    if excess is None:
        return
    rest = run.part(fits, len(run.entries))
    refuse_in_order(session, slot, rest, excess)


def _send_on(session: Connection, slot: ProducerSlot, run: SendRun) -> None:
    if slot.topic.gate is None:
        _send(session, slot, run)
    else:
        _send_through(session, slot, run, slot.topic.gate)


def _send(session: Connection, slot: ProducerSlot, run: SendRun) -> None:
    deduplication = slot.topic.deduplication
    if deduplication is None:
        _publish(session, slot, run, None)
    else:
        _send_new(session, slot, run, deduplication)


def _send_through(session: Connection, slot: ProducerSlot, run: SendRun, gate: Gate) -> None:
    """Sends the messages that the gate accepts, as fast as the rate allows."""
    for start, stop, refusal in gate.pieces(run.entries):
        part = run.part(start, stop)
        if slot.held is not None:
            slot.held.keep(part)
        elif refusal is not None:
            refuse_in_order(session, slot, part, refusal)
        elif gate.rate is None:
            _send(session, slot, part)
        else:
            _send_at_rate(session, slot, part, gate.rate)


def _send_at_rate(session: Connection, slot: ProducerSlot, run: SendRun, rate: Throttle) -> None:
    now = rate.take(run.entries, run.message_counts)
    if now:
        _send(session, slot, run.part(0, now))
    if now == len(run.entries):
        return
    rest = run.part(now, len(run.entries))
    if slot.held is not None:  # an earlier message turned out to be a copy
        slot.held.keep(rest)
        return
    held = slot.held = HeldRuns(session.services.held_runs, partial(_too_slow, session, slot))
    held.by_rate = True
    held.keep(rest)
    loop = asyncio.get_running_loop()
    loop.call_later(min(rate.wait_s(), HOLD_S / 2), _go_on_at_rate, session, slot, held)
    _rest_if_much(session, slot, held)


def _send_later(session: Connection, slot: ProducerSlot, run: SendRun, later: Later) -> None:
    too_long = partial(_start_over, session, slot, "its batches take too long to examine")
    held = slot.held = HeldRuns(session.services.held_runs, too_long)
    held.by_rate = True
    held.keep(run)
    later.when_ready(partial(_go_on_at_rate, session, slot, held))
    _rest_if_much(session, slot, held)


def _rest_if_much(session: Connection, slot: ProducerSlot, held: HeldRuns) -> None:
    if held.size_bytes > _HELD_WHILE_READING_BYTES:
        session.rest(slot)


def _go_on_at_rate(session: Connection, slot: ProducerSlot, held: HeldRuns) -> None:
    if slot.held is held:
        _go_on(session, slot, held)
    if slot.held is None or slot.held.size_bytes <= _HELD_WHILE_READING_BYTES:
        session.go_on(slot)


def _too_slow(session: Connection, slot: ProducerSlot) -> None:
    _start_over(session, slot, "it exceeds the publish rate")


def refuse_in_order(
    session: Connection, slot: ProducerSlot, run: SendRun, error: PulsarError
) -> None:
    if slot.held is not None:  # an earlier message waits: check this run again after it
        slot.held.keep(run)
        return
    if (deduplication := slot.topic.deduplication) is not None:
        deduplication.refused_all(slot.producer.name, run, session.services.examinations)
    _in_order(slot, partial(refuse, session, run, error))


def refuse_damaged(session: Connection, damaged: BadChecksum) -> None:
    """Refuses the message. Later ones are stored before the client sends it again."""
    slot = session.producers.get(damaged.producer_id)
    if slot is not None and (deduplication := slot.topic.deduplication) is not None:
        ids = damaged.sequence_id, damaged.highest_sequence_id
        deduplication.refused(slot.producer.name, *ids)
    error = ChecksumError(f"Message {damaged.sequence_id} does not match its CRC32C")
    session.write(commands.send_error(damaged.producer_id, damaged.sequence_id, error))


def _send_new(
    session: Connection, slot: ProducerSlot, run: SendRun, deduplication: Deduplication
) -> None:
    """Publishes the new messages of a run, and answers the others in order."""
    for piece in deduplication.pieces(slot.producer.name, run, session.services.examinations):
        whole = piece.stop - piece.start == len(run.entries)
        part = run if whole else run.part(piece.start, piece.stop)
        match piece:
            case Rest(taken=taken, entry=entry, messages=messages):
                rest = run.part(piece.start, piece.stop)
                rest.entries, rest.message_counts = [entry], [messages]
                _publish(session, slot, rest, taken)
            case New(taken=taken):
                _publish(session, slot, part, taken)
            case Duplicate():
                _answer_duplicate(session, slot, part, piece)
            case Refused(error=error):
                _in_order(slot, partial(refuse, session, part, error))
            case Copy(txn_id=txn_id):
                _hold(session, slot, part, txn_id, deduplication)
            case Later():
                _send_later(session, slot, part, piece)


def _publish(session: Connection, slot: ProducerSlot, run: SendRun, taken: Taken | None) -> None:
    size_bytes = sum(map(len, run.entries))
    topic, producer = slot.topic, slot.producer
    producer.messages_in += sum(run.message_counts)
    producer.bytes_in += size_bytes
    topic.bytes_in += size_bytes
    if run.chunked:  # then all its entries are chunks
        topic.chunked = True
        producer.chunks_in += len(run.entries)
    behind = slot.behind = []
    writes, clock = topic.writes, session.services.clock
    began_s = clock.monotonic_s()
    holder = slot.session

    def published(first: Position | None, error: Exception | None) -> None:
        session.services.budget.give_back(size_bytes)
        if holder is not None:
            session.services.sessions.writing.ended(holder)
        if slot.behind is behind:
            slot.behind = None
        if first is not None:
            if writes is not None:
                writes.durable(run.entries, size_bytes, clock.monotonic_s() - began_s)
            session.write(commands.receipts(run, first.ledger_id, first.entry_id))
        else:
            _not_stored(session, slot, run, error)
        for answer in behind:
            answer()

    session.spend_budget(size_bytes)
    if holder is not None:
        session.services.sessions.writing.begun(holder)
    receipting = session.services.receipting
    done = published if receipting is None else receipting(session, slot, run, published)
    topic.publish(producer, run, done, taken)


def _not_stored(
    session: Connection, slot: ProducerSlot, run: SendRun, error: Exception | None
) -> None:
    if isinstance(error, PersistenceError):  # later messages must not overtake this one
        slot.behind = None
        _start_over(session, slot, str(error))
    elif not isinstance(error, ServiceNotReady | TopicTerminated):
        # After those two the producer is closed next; the client resends or gets the reason.
        refuse(session, run, error)


def _start_over(session: Connection, slot: ProducerSlot, reason: str) -> None:
    slot.topic.tasks.start(slot.topic.producers.remove(slot.producer), "producer starts over")
    session.close_producer(slot.producer, reason)


def refuse(session: Connection, run: SendRun, error: Exception | None) -> None:
    assert isinstance(error, PulsarError)
    final = as_final(session.client_version, error)
    for sequence_id in run.sequence_ids():
        session.write(commands.send_error(run.producer_id, sequence_id, final))


def _answer_duplicate(
    session: Connection, slot: ProducerSlot, run: SendRun, duplicate: Duplicate
) -> None:
    """`run` is only the duplicate. Its answer follows those of earlier messages, once the first
    copy is durable.
    """

    def answer(error: Exception | None) -> None:
        if error is not None:
            _not_stored(session, slot, run, error)
            return
        (lowest,), (highest,) = run.sequence_ids(), run.highest_sequence_ids()
        session.write(commands.duplicate_receipt(run.producer_id, lowest, highest))

    _in_order(slot, partial(duplicate.when_durable, answer))


def _in_order(slot: ProducerSlot, answer: Callable[[], None]) -> None:
    """Clients expect answers in sending order."""
    if slot.behind is None:
        answer()
    else:
        slot.behind.append(answer)


# -- copies of messages in an open transaction


def _hold(
    session: Connection,
    slot: ProducerSlot,
    run: SendRun,
    txn_id: TxnId,
    deduplication: Deduplication,
) -> None:
    """Neither stores nor answers `run` and later messages until `txn_id` has ended."""
    held = slot.held = HeldRuns(session.services.held_runs, partial(_held_too_long, session, slot))
    held.keep(run)
    session.go_on(slot)  # reading may have stopped because of the rate
    deduplication.when_decided(txn_id, partial(_go_on, session, slot, held))


def _go_on(session: Connection, slot: ProducerSlot, held: HeldRuns) -> None:
    if slot.held is not held:
        return
    runs, complete = held.take()
    slot.held = None
    if not complete:
        _start_over(session, slot, "too many messages are waiting to be published")
        return
    for run in runs:
        send(session, run)


def _held_too_long(session: Connection, slot: ProducerSlot) -> None:
    """The client reconnects, resends everything, and waits again."""
    _start_over(session, slot, "another transaction that sent the same messages is still open")
