"""The transaction commands of PIP-31, each with its own response message."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from pybroker.base.errors import (
    InvalidTopicName,
    InvalidTxnStatus,
    NotAllowed,
    PulsarError,
    TooManyRequests,
    Undecided,
)
from pybroker.base.names import COORDINATOR_ASSIGN, TopicName, TxnId
from pybroker.broker.brokers.ownership import ALONE, Ownership, check_owned
from pybroker.broker.namespaces.tenants import NotFound
from pybroker.broker.policies.bound_coordinators import BoundElsewhere
from pybroker.broker.transactions.txn_participants import (
    check_may_join,
    partition_to_add,
    subscription_to_add,
)
from pybroker.server.connections.connection import Connection
from pybroker.server.connections.requests import though_closed
from pybroker.server.transactions import fencing
from pybroker.server.transactions.held_ids import Claim
from pybroker.server.transactions.transaction_owner import note_foreign_ends
from pybroker.server.transactions.transaction_share import (
    AskedFor,
    after_a_moment,
    begin_within_share,
    require_room_for_participants,
)
from pybroker.server.transactions.transactional_session import TransactionalSession
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.ends.participants import CannotParticipate, TransactionEnd
from pybroker.transaction.txn_status import TxnAction, require_decided
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import field_number

T = TypeVar("T")
_TYPE = pb.BaseCommand
MAX_TOGETHER: Final = 1000

_RESPONSES: Final[dict[type, type[Any]]] = {
    pb.CommandTcClientConnectRequest: pb.CommandTcClientConnectResponse,
    pb.CommandNewTxn: pb.CommandNewTxnResponse,
    pb.CommandAddPartitionToTxn: pb.CommandAddPartitionToTxnResponse,
    pb.CommandAddSubscriptionToTxn: pb.CommandAddSubscriptionToTxnResponse,
    pb.CommandEndTxn: pb.CommandEndTxnResponse,
    pb.CommandEndTxnOnPartition: pb.CommandEndTxnOnPartitionResponse,
    pb.CommandEndTxnOnSubscription: pb.CommandEndTxnOnSubscriptionResponse,
}
_NUMBERS: Final = {command: field_number(answer) for command, answer in _RESPONSES.items()}


def done(session: Connection, command: Any, txn_id: TxnId) -> None:
    number = _NUMBERS[type(command)]
    session.write(commands.transaction_done(number, command.request_id, *txn_id))


def failed(session: Connection, command: Any, error: PulsarError) -> None:
    response = _RESPONSES[type(command)](request_id=command.request_id)
    if hasattr(command, "txnid_most_bits"):
        response.txnid_most_bits, response.txnid_least_bits = _txn_id(command)
    elif isinstance(command, pb.CommandNewTxn):  # the Java client matches the request by tc_id
        response.txnid_most_bits = command.tc_id
        if isinstance(error, BoundElsewhere):
            response.allowed_coordinators.extend(error.allowed)
    if isinstance(command, pb.CommandAddSubscriptionToTxn) and isinstance(error, Undecided):
        response.undecided = True
    response.error, response.message = error.code, error.on_the_wire
    session.send_command(response)


def _txn_id(command: Any) -> TxnId:
    return TxnId(command.txnid_most_bits, command.txnid_least_bits)


def _action(command: Any) -> TxnAction:
    """No default action: proto2 drops unknown values. Raises NotAllowed."""
    if not command.HasField("txn_action"):
        raise NotAllowed("The command does not say whether to COMMIT or to ABORT the transaction")
    return TxnAction(command.txn_action)


def _on_coordinator(
    session: Connection, tc_id: int, work: Callable[[TransactionCoordinator], Awaitable[T]]
) -> Awaitable[T]:
    """Immediate if the coordinator is open. Raises, or fails with, NotAllowed if transactions are
    disabled, TransactionCoordinatorNotFound.
    """
    serving = _serving(session, tc_id)
    if serving is not None:
        return work(serving)
    return _opened(session.services.coordinators, tc_id, work)


def _serving(session: Connection, tc_id: int) -> TransactionCoordinator | None:
    """The coordinator if it is open. Raises NotAllowed if transactions are disabled."""
    if not session.services.config.transaction_coordinator_enabled:
        raise NotAllowed(
            "Transactions are disabled; set transactionCoordinatorEnabled=true in the "
            "broker's configuration"
        )
    return session.services.coordinators.serving(tc_id)


async def _opened(
    coordinators: Coordinators, tc_id: int, work: Callable[[TransactionCoordinator], Awaitable[T]]
) -> T:
    return await though_closed(work(await coordinators.get(tc_id)))


# -- from clients


def tc_client_connect(
    session: Connection, command: pb.CommandTcClientConnectRequest
) -> Awaitable[None]:
    if command.scalable:
        return _connect_v5(session, command.tc_id)
    return _on_coordinator(session, command.tc_id, _nothing_more)


async def _connect_v5(session: Connection, tc_id: int) -> None:
    """Clients of the V5 SDK were told where the coordinator is, but no broker may have it yet: 4.x
    clients would look it up here, and that would make this broker take it.
    """
    if not session.services.config.transaction_coordinator_scalable_topics_enabled:
        raise NotAllowed(
            "Transactions of the V5 SDK are disabled; set "
            "transactionCoordinatorScalableTopicsEnabled=true in the broker's configuration"
        )
    ownership = session.services.topics.ownership
    if 0 <= tc_id < session.services.coordinators.count:
        await ownership.lookup(COORDINATOR_ASSIGN.partition_at(tc_id), True)
    await _on_coordinator(session, tc_id, _nothing_more)


async def _nothing_more(coordinator: TransactionCoordinator) -> None:
    """The request only asks whether the coordinator is served here."""


def connected(session: Connection, command: pb.CommandTcClientConnectRequest, _: None) -> None:
    session.begun.are_expected = True
    session.send_command(pb.CommandTcClientConnectResponse(request_id=command.request_id))


def new_txn(session: Connection, command: pb.CommandNewTxn) -> Awaitable[TxnId]:
    claim = fencing.claimed(session, command)
    if claim is None:
        return _begin(session, command, None)
    joined = session.services.sessions.granted(session, claim)
    if joined is None:
        return _begin_when_joined(session, command, claim)
    return _begin(session, command, joined)


async def _begin_when_joined(session: Connection, command: pb.CommandNewTxn, claim: Claim) -> TxnId:
    joined = await session.services.sessions.join(session, claim)
    return await though_closed(_begin(session, command, joined))


def _begin(
    session: Connection, command: pb.CommandNewTxn, joined: TransactionalSession | None
) -> Awaitable[TxnId]:
    namespace = None
    if command.HasField("spans_namespace"):
        namespace = _checked_namespace(command.spans_namespace)
        if _may_know(session, namespace):
            check_may_join(session.services.topics.policies, TxnId(command.tc_id, 0), namespace)
    asked = AskedFor(command.txn_ttl_millis, namespace, joined, command.abort_on_disconnect)
    return _on_coordinator(
        session,
        command.tc_id,
        lambda coordinator: begin_within_share(session, coordinator, asked),
    )


def _may_know(session: Connection, namespace: str) -> bool:
    """Whether the client may use any of the namespace's topics. Others do not learn its policy,
    which would refuse the transaction there: they are refused anyway.
    """
    authorizer = session.services.authorizer
    if authorizer is None or session.login is None:
        return True
    return authorizer.may_use_any_of(session.login.identity, namespace)


def _checked_namespace(text: str) -> str:
    """Does not reveal whether the namespace exists. Using its topics requires permission anyway."""
    try:
        if TopicName.parse(f"persistent://{text}/topic").namespace_name == text:
            return text
    except InvalidTopicName:
        pass
    raise NotAllowed(
        f"The namespace {text[:200]!r} of a transaction is not of the form tenant/namespace"
    )


def begun(session: Connection, command: pb.CommandNewTxn, txn_id: TxnId) -> None:
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
    session.send_command(response)


Add = Callable[[TransactionCoordinator, TxnId, list[T], str | None], Awaitable[TxnId]]


def _adding(
    session: Connection, txn_id: TxnId, add: Add[T], participants: list[T]
) -> Awaitable[TxnId]:
    serving = _serving(session, txn_id.most)
    if serving is not None:
        return _add(session, txn_id, add, participants, serving)
    work = partial(_add, session, txn_id, add, participants)
    return _opened(session.services.coordinators, txn_id.most, work)


def _add(
    session: Connection,
    txn_id: TxnId,
    add: Add[T],
    participants: list[T],
    coordinator: TransactionCoordinator,
) -> Awaitable[TxnId]:
    """Adds `participants` unless the transaction's session is fenced."""
    if session.services.coordinators.ids.are_any:
        fencing.require_current(session, coordinator, [txn_id])
    require_room_for_participants(session, len(participants))
    adding = partial(add, coordinator, txn_id, participants, session.principal)
    try:
        added = adding()
    except TooManyRequests:
        added = after_a_moment(session, adding)
    session.added.add(txn_id, len(participants))
    return added


def add_partition(
    session: Connection, command: pb.CommandAddPartitionToTxn, up_to_date: bool = False
) -> Awaitable[TxnId]:
    txn_id, known = _txn_id(command), session.services.topics
    try:
        topics = [partition_to_add(known, txn_id, topic) for topic in command.partitions]
    except (NotAllowed, NotFound):
        if up_to_date or known.ownership is ALONE:
            raise
        return _up_to_date(session, command, add_partition)
    return _adding(session, txn_id, TransactionCoordinator.add_partitions, topics)


def add_subscription(
    session: Connection, command: pb.CommandAddSubscriptionToTxn, up_to_date: bool = False
) -> Awaitable[TxnId]:
    txn_id, known = _txn_id(command), session.services.topics
    try:
        subscriptions = [
            subscription_to_add(known, txn_id, added.topic, added.subscription)
            for added in command.subscription
        ]
    except (NotAllowed, NotFound):
        if up_to_date or known.ownership is ALONE:
            raise
        return _up_to_date(session, command, add_subscription)
    return _adding(session, txn_id, TransactionCoordinator.add_subscriptions, subscriptions)


async def _up_to_date(
    session: Connection, command: T, again: Callable[[Connection, T, bool], Awaitable[TxnId]]
) -> TxnId:
    """Nothing is refused before this: another broker may have just created the topic's partitions
    or its namespace, and clients do not repeat a refused request.
    """
    await session.services.topics.ownership.refreshed()
    return await though_closed(again(session, command, True))


def end_txn(session: Connection, command: pb.CommandEndTxn) -> Awaitable[TxnId]:
    txn_id, action, principal = _txn_id(command), _action(command), session.principal
    if command.together_with or command.together_with_most:
        return _commit_together(session, txn_id, action, _together_with(command))

    def end(coordinator: TransactionCoordinator) -> Awaitable[TxnId]:
        # An abort is fine: fencing aborts, too.
        if action is TxnAction.COMMIT and session.services.coordinators.ids.are_any:
            fencing.require_current(session, coordinator, [txn_id])
        if principal is None and session.login is not None:
            note_foreign_ends(session, [txn_id], action)
        return coordinator.end(txn_id, action, principal)

    return _on_coordinator(session, txn_id.most, end)


def ended(session: Connection, command: pb.CommandEndTxn, txn_id: TxnId) -> None:
    session.begun.ended(txn_id)
    session.added.ended(txn_id)
    if command.together_with:
        for each in _together_with(command):
            session.begun.ended(each)
            session.added.ended(each)
    done(session, command, txn_id)


def _together_with(command: pb.CommandEndTxn) -> list[TxnId]:
    """Raises NotAllowed unless there are as many most as least bits."""
    most, least = command.together_with_most, command.together_with
    if not most:
        return [TxnId(command.txnid_most_bits, each) for each in least]
    if len(most) != len(least):
        raise NotAllowed(
            f"END_TXN has {len(least)} least bits and {len(most)} most bits: send equally many"
        )
    return list(map(TxnId, most, least))


def _commit_together(
    session: Connection, txn_id: TxnId, action: TxnAction, others: Sequence[TxnId]
) -> Awaitable[TxnId]:
    if action is not TxnAction.COMMIT:
        raise NotAllowed("Only commits may name several transactions; abort each one individually")
    if len(others) > MAX_TOGETHER:
        raise NotAllowed(
            f"{len(others)} transactions are too many: commit at most {MAX_TOGETHER} together"
        )
    across = any(each.most != txn_id.most for each in others)
    all_of_them, principal = [txn_id, *others], session.principal
    if principal is None and session.login is not None:
        note_foreign_ends(session, all_of_them, action)

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

    return _on_coordinator(session, txn_id.most, commit_across if across else commit)


# -- from other brokers


async def _decided(session: Connection, txn_id: TxnId, action: TxnAction, topic: str) -> bool:
    """Checks that the coordinator decided the end that another broker requests. If the coordinator
    is elsewhere, and only brokers may send the request, the request itself is trusted. True: the
    coordinator is here and has not finished the end, so it knows the participants.

    Raises NotServedHere, ServiceNotReady (not durable yet), InvalidTxnStatus, TransactionNotFound,
    TransactionCoordinatorNotFound.
    """
    await _require_owned(session.services.topics.ownership, TopicName.parse(topic))
    remote = session.services.coordinators.remote(txn_id.most)
    if remote is None:
        session.services.coordinators.require_durable(txn_id)
        return require_decided(session.services.coordinators, txn_id, action)
    await remote.told(txn_id, action, trusted=session.services.authorizes)
    return False


async def _require_owned(ownership: Ownership, name: TopicName) -> None:
    """Acquires the topic's bundle if no broker has it. Raises NotServedHere, ServiceNotReady."""
    if not ownership.owns(name):
        await ownership.owner_of(name)
        check_owned(ownership, name)


async def end_on_partition(session: Connection, command: pb.CommandEndTxnOnPartition) -> None:
    txn_id, action, topic = _txn_id(command), _action(command), str(TopicName.parse(command.topic))
    outcomes = session.services.coordinators
    decided = await _decided(session, txn_id, action, topic)
    if decided and not outcomes.has_partition(txn_id, topic):
        raise InvalidTxnStatus(
            f"Transaction {txn_id} does not write to {topic}: there is nothing to end"
        )
    participants = session.services.participants
    end = TransactionEnd(txn_id, action, _low_watermark(command))
    await _end(lambda: participants.end_on_partition(end, topic))
    done(session, command, txn_id)


async def end_on_subscription(session: Connection, command: pb.CommandEndTxnOnSubscription) -> None:
    txn_id, action, name = _txn_id(command), _action(command), command.subscription.subscription
    topic, outcomes = (
        str(TopicName.parse(command.subscription.topic)),
        session.services.coordinators,
    )
    decided = await _decided(session, txn_id, action, topic)
    if decided and not outcomes.has_subscription(txn_id, topic, name):
        raise InvalidTxnStatus(
            f"Transaction {txn_id} does not acknowledge on {topic}, subscription {name}: there is "
            "nothing to end"
        )
    participants = session.services.participants
    end = TransactionEnd(txn_id, action, _low_watermark(command))
    await _end(lambda: participants.end_on_subscription(end, topic, name))
    done(session, command, txn_id)


def _low_watermark(command: Any) -> int:
    """-1: no transaction has ended."""
    known = command.HasField("txnid_least_bits_of_low_watermark")
    return command.txnid_least_bits_of_low_watermark if known else -1


async def _end(end: Callable[[], Awaitable[object] | None]) -> None:
    try:
        if (ending := end()) is not None:
            await asyncio.shield(ending)
    except CannotParticipate as error:
        raise NotAllowed(str(error)) from error
