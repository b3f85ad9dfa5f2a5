"""ACK: of whole entries, parts of batches, cumulative, and in transactions.

A command may name very many messages: the first are processed at once, the rest in later turns.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from managed_ledger.position import Position
from pybroker.base.errors import ConsumerNotFound, NotAllowed, PulsarError
from pybroker.base.names import TxnId
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.server.connections.connection import Connection, Rest
from pybroker.server.connections.slots import ConsumerSlot
from pybroker.server.transactions.participant_limits import ConnectionJoins
from pybroker.server.transactions.transaction_owner import check_owner
from pybroker.transaction.coordinator.joining import Joined
from pybroker.transaction.pending_acks.covered import Covered
from pybroker.transaction.pending_acks.records import PendingAck
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.commands import ack_set_bits

# How much of one command is processed per turn: message ids, and bits of ack sets.
IDS_A_TURN: Final = 1000
BITS_A_TURN: Final = 50_000_000
MAX_IDS_IN_TRANSACTION: Final = 10_000


def position_of(message_id: pb.MessageIdData) -> Position:
    """On the wire, MessageId.earliest is (2^64 - 1, 2^64 - 1); the position is (-1, -1)."""
    ledger_id, entry_id = message_id.ledgerId, message_id.entryId
    return Position(
        ledger_id if ledger_id < 2**63 else ledger_id - 2**64,
        entry_id if entry_id < 2**63 else entry_id - 2**64,
    )


def ack(session: Connection, command: pb.CommandAck) -> Rest | None:
    slot = session.consumers.get(command.consumer_id)
    if slot is None:
        raise ConsumerNotFound(f"Consumer {command.consumer_id} is not connected here")
    if command.HasField("txnid_least_bits"):
        _check_size_in_transaction(command)
        if (named := _named_at_once(slot.topic, command)) is None:
            return _ack_in_turns(session, slot, command)
        _ack_in_transaction(session, slot, command, named)
        return None
    if command.ack_type == pb.CommandAck.Cumulative and len(command.message_id) != 1:
        raise NotAllowed("A cumulative acknowledgement must name exactly one message")
    mark = slot.subscription.mark_delete_position
    done = _acknowledge(slot, command, 0)
    _note_acknowledged(session, slot, mark, command)
    if done < len(command.message_id):
        return _acknowledge_rest(session, slot, command, done)
    if command.HasField("request_id"):
        _answer_ack(session, command, None)
    return None


def _note_acknowledged(
    session: Connection, slot: ConsumerSlot, mark: Position, command: pb.CommandAck
) -> None:
    """`mark` is the mark-delete position before the acknowledgement."""
    now_ms = session.services.clock.now_ms()
    slot.consumer.times.acknowledged_ms = slot.subscription.times.acknowledged_ms = now_ms
    moved = slot.subscription.mark_delete_position
    if moved != mark:
        slot.subscription.times.mark_delete_moved_ms = now_ms
        if command.ack_type == pb.CommandAck.Cumulative:
            # Not counted: the rest of the previous ledger, which would have to be looked up.
            passed = mark.entry_id if moved.ledger_id == mark.ledger_id else -1
            slot.consumer.entries_acknowledged += moved.entry_id - passed


def _acknowledge(slot: ConsumerSlot, command: pb.CommandAck, start: int) -> int:
    """Processes one turn's message ids from index `start` on. Returns the next index, which is
    `start` itself if that entry must be looked up on disk.
    """
    if command.ack_type == pb.CommandAck.Cumulative and not command.message_id[0].ack_set:
        slot.subscription.acknowledge_cumulative(slot.consumer, position_of(command.message_id[0]))
        return 1
    whole: list[tuple[int, int]] = []
    bits_left = BITS_A_TURN
    for message_id in command.message_id[start : start + IDS_A_TURN]:
        if not message_id.ack_set:
            whole.append((message_id.ledgerId, message_id.entryId))
        else:
            batch_size = slot.topic.known_message_count(position_of(message_id))
            if batch_size is None or bits_left <= 0:
                break
            _acknowledge_part(slot, command, message_id, batch_size)
            bits_left -= batch_size
        start += 1
    if whole:
        slot.consumer.entries_acknowledged += len(whole)
        slot.subscription.acknowledge(slot.consumer, whole)
    return start


def _acknowledge_part(
    slot: ConsumerSlot, command: pb.CommandAck, message_id: pb.MessageIdData, batch_size: int
) -> None:
    """Acknowledges part of a batch; `batch_size` is 0 if there is no such entry."""
    position, unacked = position_of(message_id), None
    if batch_size:
        unacked = ack_set_bits(message_id.ack_set, batch_size)
    if unacked and not slot.topic.policies.config.acknowledgment_at_batch_index_level_enabled:
        if command.ack_type == pb.CommandAck.Cumulative:
            slot.subscription.acknowledge_cumulative(slot.consumer, position.before)
            return
        if _is_left(slot, position, unacked, batch_size):
            return
    if command.ack_type == pb.CommandAck.Cumulative:
        slot.subscription.acknowledge_cumulative(slot.consumer, position, unacked, batch_size)
    elif unacked is not None:
        slot.consumer.entries_acknowledged += unacked == 0
        slot.consumer.left_out.named(position, unacked)
        slot.subscription.acknowledge_indexes(slot.consumer, position, unacked, batch_size)


def _is_left(slot: ConsumerSlot, position: Position, unacked: int, batch_size: int) -> bool:
    """Whether messages of the batch are left to acknowledge. Those that a transaction holds do not
    count: clients did not receive them, so they stay in `unacked`.
    """
    subscription = slot.subscription
    if not isinstance(subscription, Subscription):
        return True
    return bool(unacked & subscription.reader.unacked_bits(position, batch_size))


async def _acknowledge_rest(
    session: Connection, slot: ConsumerSlot, command: pb.CommandAck, done: int
) -> None:
    while done < len(command.message_id):
        await asyncio.sleep(0)
        _check_stays(session, slot)
        before, done = done, _acknowledge(slot, command, done)
        if done == before:
            message_id = command.message_id[done]
            batch_size = await slot.topic.message_count(position_of(message_id))
            _check_stays(session, slot)
            _acknowledge_part(slot, command, message_id, batch_size)
            done += 1
    if command.HasField("request_id"):
        _answer_ack(session, command, None)


def _check_stays(session: Connection, slot: ConsumerSlot) -> None:
    """Raises ConsumerNotFound after a seek, which changes what is acknowledged and closes the
    consumer.
    """
    consumer_id = slot.consumer.consumer_id
    if session.consumers.get(consumer_id) is not slot:
        raise ConsumerNotFound(f"Consumer {consumer_id} is gone; acknowledge again")


def _check_size_in_transaction(command: pb.CommandAck) -> None:
    """The messages are acknowledged atomically, in one turn. Raises NotAllowed."""
    names = len(command.message_id)
    if command.HasField("covered"):
        names += len(command.covered.runs) + len(command.covered.parts)
    if names > MAX_IDS_IN_TRANSACTION:
        raise NotAllowed(
            f"One acknowledgement in a transaction names {names} messages: send at most "
            f"{MAX_IDS_IN_TRANSACTION} in each"
        )


@dataclass(frozen=True, slots=True)
class _Named:
    """The messages that an acknowledgement in a transaction names."""

    acks: list[PendingAck]
    covered: Covered | None


def _named_at_once(topic: ServedTopic, command: pb.CommandAck) -> _Named | None:
    """None if they are very many, or parts of batches of which one must be looked up on disk."""
    covered = command.covered if command.HasField("covered") else None
    named = len(command.message_id)
    if covered is not None:
        named += len(covered.runs) + len(covered.parts)
    if named > IDS_A_TURN or (acks := _known_acks(topic, command.message_id)) is None:
        return None
    if covered is None:
        return _Named(acks, None)
    parts = _known_acks(topic, covered.parts)
    return None if parts is None else _Named(acks, _covered(command, acks, parts))


def _known_acks(
    topic: ServedTopic, message_ids: Iterable[pb.MessageIdData]
) -> list[PendingAck] | None:
    acks, bits = list[PendingAck](), 0
    for message_id in message_ids:
        position, batch_size = position_of(message_id), 0
        if message_id.ack_set:
            known = topic.known_message_count(position)
            if known is None or (bits := bits + known) > BITS_A_TURN:
                return None
            batch_size = known
        acks.append(_as_pending(position, message_id, batch_size))
    return acks


async def _ack_in_turns(session: Connection, slot: ConsumerSlot, command: pb.CommandAck) -> None:
    """Collects the messages in turns; later commands wait, so that acknowledgements keep their
    order.
    """
    acks, covered = await _pending_acks(slot.topic, command.message_id), None
    if command.HasField("covered"):
        parts = await _pending_acks(slot.topic, command.covered.parts)
        covered = _covered(command, acks, parts)
    _check_stays(session, slot)
    _ack_in_transaction(session, slot, command, _Named(acks, covered))


def _ack_in_transaction(
    session: Connection, slot: ConsumerSlot, command: pb.CommandAck, named: _Named
) -> None:
    """Immediate if the subscription already takes part: all messages are held at once, or none."""
    joined = _joining(session, slot, command)
    if joined is None:
        held = _hold(slot, command, named)
    else:
        held = _ack_when_joined(session, slot, command, named, joined)
    session.requests.answer_later(
        held,
        lambda _: _answer_ack(session, command, None),
        lambda error: _answer_ack(session, command, error),
        command.ByteSize(),
    )


def _joining(session: Connection, slot: ConsumerSlot, command: pb.CommandAck) -> Joined | None:
    """See `Joining.subscription`."""
    txn_id = TxnId(command.txnid_most_bits, command.txnid_least_bits)
    joining, name = session.services.coordinators.joining, slot.subscription.name
    if not joining.are_any:
        return None
    return joining.subscription(txn_id, slot.topic.name, name, ConnectionJoins(session))


async def _ack_when_joined(
    session: Connection,
    slot: ConsumerSlot,
    command: pb.CommandAck,
    named: _Named,
    joined: Joined,
) -> None:
    """`_hold` checks whether the subscription has really joined."""
    await asyncio.wait([joined])
    _check_stays(session, slot)
    if session.login is not None:  # the owner may have been unknown until now: see Elsewhere
        check_owner(session, TxnId(command.txnid_most_bits, command.txnid_least_bits))
    _joining(session, slot, command)  # raises if joining was refused
    await _hold(slot, command, named)


async def _pending_acks(
    topic: ServedTopic, message_ids: Iterable[pb.MessageIdData]
) -> list[PendingAck]:
    acks: list[PendingAck] = []
    for message_id in message_ids:
        acks.append(await pending_ack(topic, message_id))
        if len(acks) % IDS_A_TURN == 0:
            await asyncio.sleep(0)
    if sum(ack.batch_size for ack in acks) > BITS_A_TURN:
        raise NotAllowed(
            "One acknowledgement in a transaction names parts of batches with more than "
            f"{BITS_A_TURN} messages in total: split it into several acknowledgements"
        )
    return acks


def _covered(
    command: pb.CommandAck, acks: Sequence[PendingAck], parts: Sequence[PendingAck]
) -> Covered:
    """Raises NotAllowed unless the acknowledgement is cumulative, and all that it names is before
    its last message.
    """
    runs = [(run.ledgerId, run.firstEntryId, run.lastEntryId) for run in command.covered.runs]
    covered = Covered(runs, parts)
    if command.ack_type != pb.CommandAck.Cumulative or not covered:
        raise NotAllowed("Only a cumulative acknowledgement names messages that it covers")
    if [covered.last] > [ack.position for ack in acks]:
        raise NotAllowed("A cumulative acknowledgement covers nothing after its last message")
    return covered


def _hold(slot: ConsumerSlot, command: pb.CommandAck, named: _Named) -> Awaitable[None]:
    txn_id = TxnId(command.txnid_most_bits, command.txnid_least_bits)
    cumulative = command.ack_type == pb.CommandAck.Cumulative
    hold = slot.subscription.acknowledge_in_transaction
    return hold(slot.consumer, txn_id, named.acks, cumulative, named.covered)


async def pending_ack(topic: ServedTopic, message_id: pb.MessageIdData) -> PendingAck:
    position = position_of(message_id)
    batch_size = await topic.message_count(position) if message_id.ack_set else 0
    return _as_pending(position, message_id, batch_size)


def _as_pending(position: Position, message_id: pb.MessageIdData, batch_size: int) -> PendingAck:
    """`batch_size` is 0 if the whole entry is named, or does not exist."""
    if not batch_size:
        return PendingAck(position)
    return PendingAck(position, ack_set_bits(message_id.ack_set, batch_size), batch_size)


def _answer_ack(session: Connection, command: pb.CommandAck, error: PulsarError | None) -> None:
    answer = pb.CommandAckResponse(consumer_id=command.consumer_id)
    if command.HasField("request_id"):
        answer.request_id = command.request_id
    if command.HasField("txnid_least_bits"):
        answer.txnid_least_bits = command.txnid_least_bits
        answer.txnid_most_bits = command.txnid_most_bits
    if error is not None:
        answer.error = error.code  # type: ignore[assignment]
        answer.message = error.on_the_wire
    session.send_command(answer)


def ack_failed(session: Connection, command: pb.CommandAck, error: PulsarError) -> None:
    if command.HasField("request_id") or command.HasField("txnid_least_bits"):
        _answer_ack(session, command, error)
