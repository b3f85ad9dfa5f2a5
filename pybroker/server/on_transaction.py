"""The transaction commands of PIP-31, each answered in the response message of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from pybroker.base.errors import InvalidTopicName, InvalidTxnStatus, NotAllowed, PulsarError
from pybroker.base.names import TopicName, TxnId
from pybroker.broker.policies.bound_coordinators import BoundElsewhere
from pybroker.broker.txn_participants import (
    LocalParticipants,
    check_may_join,
    partition_to_add,
    subscription_to_add,
)
from pybroker.server import fencing
from pybroker.server.connection import Connection
from pybroker.server.transaction_share import begin_within_share, when_there_is_room
from pybroker.server.transactional_session import TransactionalSession
from pybroker.server.transactional_sessions import Claim
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.participants import CannotParticipate
from pybroker.transaction.txn_status import TxnAction, require_decided
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb

T = TypeVar("T")
_TYPE = pb.BaseCommand
MAX_TOGETHER: Final = 1000

# Which response answers which command: its type and its field in BaseCommand.
_RESPONSES: Final[dict[type, tuple[Any, str]]] = {
    pb.CommandTcClientConnectRequest: (_TYPE.TC_CLIENT_CONNECT_RESPONSE, "tcClientConnectResponse"),
    pb.CommandNewTxn: (_TYPE.NEW_TXN_RESPONSE, "newTxnResponse"),
    pb.CommandAddPartitionToTxn: (
        _TYPE.ADD_PARTITION_TO_TXN_RESPONSE,
        "addPartitionToTxnResponse",
    ),
    pb.CommandAddSubscriptionToTxn: (
        _TYPE.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
        "addSubscriptionToTxnResponse",
    ),
    pb.CommandEndTxn: (_TYPE.END_TXN_RESPONSE, "endTxnResponse"),
    pb.CommandEndTxnOnPartition: (
        _TYPE.END_TXN_ON_PARTITION_RESPONSE,
        "endTxnOnPartitionResponse",
    ),
    pb.CommandEndTxnOnSubscription: (
        _TYPE.END_TXN_ON_SUBSCRIPTION_RESPONSE,
        "endTxnOnSubscriptionResponse",
    ),
}


_NUMBERS: Final = {
    command: (kind, int(_TYPE.DESCRIPTOR.fields_by_name[field].number))
    for command, (kind, field) in _RESPONSES.items()
}


def done(session: Connection, command: Any, txn_id: TxnId) -> None:
    kind, number = _NUMBERS[type(command)]
    session.write(commands.transaction_done(kind, number, command.request_id, *txn_id))


def failed(session: Connection, command: Any, error: PulsarError) -> None:
    kind, field = _RESPONSES[type(command)]
    envelope = pb.BaseCommand(type=kind)
    response = getattr(envelope, field)
    response.request_id = command.request_id
    if hasattr(command, "txnid_most_bits"):
        response.txnid_most_bits, response.txnid_least_bits = _txn_id(command)
    elif isinstance(command, pb.CommandNewTxn):  # the Java client finds who asked by it
        response.txnid_most_bits = command.tc_id
        if isinstance(error, BoundElsewhere):
            response.allowed_coordinators.extend(error.allowed)
    response.error, response.message = error.code, error.on_the_wire
    session.send_command(envelope)


def _txn_id(command: Any) -> TxnId:
    return TxnId(command.txnid_most_bits, command.txnid_least_bits)


def _action(command: Any) -> TxnAction:
    """Neither end is a default: proto2 drops values it does not know."""
    if not command.HasField("txn_action"):
        raise NotAllowed("The command does not say whether to COMMIT or to ABORT the transaction")
    return TxnAction(command.txn_action)


def _on_coordinator(
    session: Connection, tc_id: int, work: Callable[[TransactionCoordinator], Awaitable[T]]
) -> Awaitable[T]:
    """At once if it is open. Raises, or fails with, NotAllowed when transactions are off,
    TransactionCoordinatorNotFound.
    """
    if not session.services.config.transaction_coordinator_enabled:
        raise NotAllowed(
            "Transactions are switched off; set transactionCoordinatorEnabled=true in the "
            "broker's configuration"
        )
    coordinators = session.services.coordinators
    serving = coordinators.serving(tc_id)
    return _opened(coordinators, tc_id, work) if serving is None else work(serving)


async def _opened(
    coordinators: Coordinators, tc_id: int, work: Callable[[TransactionCoordinator], Awaitable[T]]
) -> T:
    return await work(await coordinators.get(tc_id))


# -- from clients


def tc_client_connect(
    session: Connection, command: pb.CommandTcClientConnectRequest
) -> Awaitable[None]:
    return _on_coordinator(session, command.tc_id, _nothing_more)


async def _nothing_more(coordinator: TransactionCoordinator) -> None:
    """That it is served is all that was asked."""


def connected(session: Connection, command: pb.CommandTcClientConnectRequest, _: None) -> None:
    kind, field = _RESPONSES[type(command)]
    envelope = pb.BaseCommand(type=kind)
    getattr(envelope, field).request_id = command.request_id
    session.send_command(envelope)


def new_txn(session: Connection, command: pb.CommandNewTxn) -> Awaitable[TxnId]:
    claim = fencing.claimed(session, command)
    if claim is None:
        return _begin(session, command, None)
    joined = session.services.sessions.granted(session, claim)
    if joined is None:
        return _begin_when_joined(session, command, claim)
    return _begin(session, command, joined)


async def _begin_when_joined(session: Connection, command: pb.CommandNewTxn, claim: Claim) -> TxnId:
    return await _begin(session, command, await session.services.sessions.join(session, claim))


def _begin(
    session: Connection, command: pb.CommandNewTxn, joined: TransactionalSession | None
) -> Awaitable[TxnId]:
    timeout_ms, namespace = command.txn_ttl_millis, None
    if command.HasField("spans_namespace"):
        namespace = _checked_namespace(command.spans_namespace)
        check_may_join(session.services.topics.policies, TxnId(command.tc_id, 0), namespace)
    return _on_coordinator(
        session,
        command.tc_id,
        lambda coordinator: begin_within_share(session, coordinator, timeout_ms, namespace, joined),
    )


def _checked_namespace(text: str) -> str:
    """Whether it exists is not told: who touches its topics is asked for the permission to."""
    try:
        if TopicName.parse(f"persistent://{text}/topic").namespace_name == text:
            return text
    except InvalidTopicName:
        pass
    raise NotAllowed(
        f"A transaction spans a namespace of the form tenant/namespace, which {text[:200]!r} is not"
    )


def begun(session: Connection, command: pb.CommandNewTxn, txn_id: TxnId) -> None:
    services = session.services
    session.owned.add(txn_id, command.abort_on_disconnect, services.coordinators)
    if session.closed:  # meanwhile
        services.disconnections.closed(session.owned)
    if not command.HasField("transactional_id"):
        done(session, command, txn_id)
        return
    transaction = session.services.coordinators.begun(txn_id)
    bound = None if transaction is None else transaction.session
    response = pb.CommandNewTxnResponse(
        request_id=command.request_id,
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
        session_epoch=0 if bound is None else bound.epoch,
    )
    session.send_command(pb.BaseCommand(type=_TYPE.NEW_TXN_RESPONSE, newTxnResponse=response))


def _adding(
    session: Connection,
    txn_id: TxnId,
    add: Callable[[TransactionCoordinator], Awaitable[TxnId]],
) -> Awaitable[TxnId]:
    def unless_fenced(coordinator: TransactionCoordinator) -> Awaitable[TxnId]:
        fencing.require_current(session, coordinator, [txn_id])
        return when_there_is_room(lambda: add(coordinator))

    return _on_coordinator(session, txn_id.most, unless_fenced)


def add_partition(session: Connection, command: pb.CommandAddPartitionToTxn) -> Awaitable[TxnId]:
    txn_id, principal = _txn_id(command), session.principal
    known = session.services.topics
    topics = [partition_to_add(known, txn_id, topic) for topic in command.partitions]
    return _adding(
        session,
        txn_id,
        lambda coordinator: coordinator.add_partitions(txn_id, topics, principal),
    )


def add_subscription(
    session: Connection, command: pb.CommandAddSubscriptionToTxn
) -> Awaitable[TxnId]:
    txn_id, principal = _txn_id(command), session.principal
    subscriptions = [
        subscription_to_add(session.services.topics, txn_id, added.topic, added.subscription)
        for added in command.subscription
    ]
    return _adding(
        session,
        txn_id,
        lambda coordinator: coordinator.add_subscriptions(txn_id, subscriptions, principal),
    )


def end_txn(session: Connection, command: pb.CommandEndTxn) -> Awaitable[TxnId]:
    txn_id, action, principal = _txn_id(command), _action(command), session.principal
    if command.together_with or command.together_with_most:
        return _commit_together(session, txn_id, action, _together_with(command))

    def end(coordinator: TransactionCoordinator) -> Awaitable[TxnId]:
        if action is TxnAction.COMMIT:  # to abort is what fencing does, too
            fencing.require_current(session, coordinator, [txn_id])
        return coordinator.end(txn_id, action, principal)

    return _on_coordinator(session, txn_id.most, end)


def ended(session: Connection, command: pb.CommandEndTxn, txn_id: TxnId) -> None:
    _ended(session, txn_id)
    for other in _together_with(command):
        _ended(session, other)
    done(session, command, txn_id)


def _ended(session: Connection, txn_id: TxnId) -> None:
    session.begun.ended(txn_id)
    session.owned.ended(txn_id)


def _together_with(command: pb.CommandEndTxn) -> list[TxnId]:
    """Raises NotAllowed."""
    most, least = command.together_with_most, command.together_with
    if not most:
        return [TxnId(command.txnid_most_bits, each) for each in least]
    if len(most) != len(least):
        raise NotAllowed(
            f"END_TXN names {len(least)} least bits and {len(most)} most bits: as many of both"
        )
    return list(map(TxnId, most, least))


def _commit_together(
    session: Connection, txn_id: TxnId, action: TxnAction, others: Sequence[TxnId]
) -> Awaitable[TxnId]:
    if action is not TxnAction.COMMIT:
        raise NotAllowed("Transactions commit together; abort each of them by itself")
    if len(others) > MAX_TOGETHER:
        raise NotAllowed(f"{len(others)} transactions are too many: commit up to {MAX_TOGETHER}")
    all_of_them, principal = [txn_id, *others], session.principal

    def commit(coordinator: TransactionCoordinator) -> Awaitable[TxnId]:
        fencing.require_current(session, coordinator, all_of_them)
        return coordinator.commit_together(txn_id, [each.least for each in others], principal)

    def commit_across(coordinator: TransactionCoordinator) -> Awaitable[TxnId]:
        coordinators = session.services.coordinators
        for most in {each.most for each in all_of_them}:
            of_one = [each for each in all_of_them if each.most == most]
            if (serving := coordinators.serving(most)) is not None:
                fencing.require_current(session, serving, of_one)
        return coordinators.groups.commit(txn_id, others, principal)

    across = any(each.most != txn_id.most for each in others)
    return _on_coordinator(session, txn_id.most, commit_across if across else commit)


# -- from other brokers


async def end_on_partition(session: Connection, command: pb.CommandEndTxnOnPartition) -> None:
    """A broker can only ask for what was decided: everybody acts on the coordinator's word."""
    txn_id, action, topic = _txn_id(command), _action(command), str(TopicName.parse(command.topic))
    outcomes = session.services.coordinators
    if require_decided(outcomes, txn_id, action) and not outcomes.has_partition(txn_id, topic):
        raise InvalidTxnStatus(f"Transaction {txn_id} does not write to {topic}: nothing to end")
    participants = LocalParticipants(session.services.topics)
    low_watermark = command.txnid_least_bits_of_low_watermark
    await _end(lambda: participants.end_on_partition(txn_id, topic, action, low_watermark))
    done(session, command, txn_id)


async def end_on_subscription(session: Connection, command: pb.CommandEndTxnOnSubscription) -> None:
    txn_id, action, name = _txn_id(command), _action(command), command.subscription.subscription
    topic, outcomes = (
        str(TopicName.parse(command.subscription.topic)),
        session.services.coordinators,
    )
    decided = require_decided(outcomes, txn_id, action)
    if decided and not outcomes.has_subscription(txn_id, topic, name):
        raise InvalidTxnStatus(
            f"Transaction {txn_id} does not acknowledge on {topic}, subscription {name}: nothing "
            "to end"
        )
    participants = LocalParticipants(session.services.topics)
    low_watermark = command.txnid_least_bits_of_low_watermark
    await _end(lambda: participants.end_on_subscription(txn_id, topic, name, action, low_watermark))
    done(session, command, txn_id)


async def _end(end: Callable[[], Awaitable[None] | None]) -> None:
    try:
        if (ending := end()) is not None:
            await asyncio.shield(ending)
    except CannotParticipate as error:
        raise NotAllowed(str(error)) from error
