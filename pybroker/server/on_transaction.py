"""The transaction commands of PIP-31, each answered in the response message of its own."""

from typing import TYPE_CHECKING, Any, Final

from pybroker.broker.txn_participants import LocalParticipants
from pybroker.errors import NotAllowed, PulsarError
from pybroker.names import TopicName, TxnId
from pybroker.transaction.coordinator import TransactionCoordinator
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pybroker.server.session import Session

_TYPE = pb.BaseCommand

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


def _answer(
    session: "Session", command: Any, txn_id: TxnId | None, error: PulsarError | None = None
) -> None:
    kind, field = _RESPONSES[type(command)]
    envelope = pb.BaseCommand(type=kind)
    response = getattr(envelope, field)
    response.request_id = command.request_id
    if txn_id is not None:
        # Explicitly, even when 0: the Go client dereferences both.
        response.txnid_most_bits, response.txnid_least_bits = txn_id
    if error is not None:
        response.error, response.message = error.code, str(error)
    session.send_command(envelope)


def failed(session: "Session", command: Any, error: PulsarError) -> None:
    has_id = hasattr(command, "txnid_most_bits")
    _answer(session, command, _txn_id(command) if has_id else None, error)


def _txn_id(command: Any) -> TxnId:
    return TxnId(command.txnid_most_bits, command.txnid_least_bits)


def _action(command: Any) -> TxnAction:
    """Neither end is a default: proto2 drops values it does not know."""
    if not command.HasField("txn_action"):
        raise NotAllowed("The command does not say whether to COMMIT or to ABORT the transaction")
    return TxnAction(command.txn_action)


async def _coordinator(session: "Session", tc_id: int) -> TransactionCoordinator:
    """Raises NotAllowed when transactions are off, TransactionCoordinatorNotFound."""
    if not session.services.config.transaction_coordinator_enabled:
        raise NotAllowed(
            "Transactions are switched off; set transactionCoordinatorEnabled=true in the "
            "broker's configuration"
        )
    return await session.services.coordinators.get(tc_id)


# -- from clients


async def tc_client_connect(session: "Session", command: pb.CommandTcClientConnectRequest) -> None:
    await _coordinator(session, command.tc_id)
    _answer(session, command, None)


async def new_txn(session: "Session", command: pb.CommandNewTxn) -> None:
    coordinator = await _coordinator(session, command.tc_id)
    txn_id = await coordinator.new_transaction(command.txn_ttl_millis, session.principal)
    _answer(session, command, txn_id)


async def add_partition(session: "Session", command: pb.CommandAddPartitionToTxn) -> None:
    txn_id = _txn_id(command)
    coordinator = await _coordinator(session, txn_id.most)
    topics = [str(TopicName.parse(topic)) for topic in command.partitions]
    await coordinator.add_partitions(txn_id, topics, session.principal)
    _answer(session, command, txn_id)


async def add_subscription(session: "Session", command: pb.CommandAddSubscriptionToTxn) -> None:
    txn_id = _txn_id(command)
    coordinator = await _coordinator(session, txn_id.most)
    subscriptions = [(str(TopicName.parse(s.topic)), s.subscription) for s in command.subscription]
    await coordinator.add_subscriptions(txn_id, subscriptions, session.principal)
    _answer(session, command, txn_id)


async def end_txn(session: "Session", command: pb.CommandEndTxn) -> None:
    txn_id = _txn_id(command)
    coordinator = await _coordinator(session, txn_id.most)
    await coordinator.end(txn_id, _action(command), session.principal)
    _answer(session, command, txn_id)


# -- from other brokers


async def end_on_partition(session: "Session", command: pb.CommandEndTxnOnPartition) -> None:
    txn_id = _txn_id(command)
    await LocalParticipants(session.services.topics).end_on_partition(
        txn_id,
        command.topic,
        _action(command),
        command.txnid_least_bits_of_low_watermark,
    )
    _answer(session, command, txn_id)


async def end_on_subscription(session: "Session", command: pb.CommandEndTxnOnSubscription) -> None:
    txn_id = _txn_id(command)
    await LocalParticipants(session.services.topics).end_on_subscription(
        txn_id,
        command.subscription.topic,
        command.subscription.subscription,
        _action(command),
        command.txnid_least_bits_of_low_watermark,
    )
    _answer(session, command, txn_id)
