"""ASK_TRANSACTION: another broker asks this one, which serves the transaction's coordinator.

Differs: Apache Pulsar has no such command; CONNECTED announces it (`supports_asking_transactions`).
"""

import asyncio

from pybroker.base.errors import TransactionNotFound
from pybroker.base.names import COORDINATOR_ASSIGN, TopicName, TxnId
from pybroker.server.connections.connection import Connection
from pybroker.server.transactions import fencing
from pybroker.server.transactions.on_behalf_of import principal_of
from pybroker.server.transactions.participant_limits import BrokerJoins
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.remote_coordinators import require_begun
from pybroker.transaction.coordinator.sessions.transactional_ids import (
    SessionRef,
    TransactionalId,
    check_id,
)
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb


async def ask_transaction(session: Connection, command: pb.CommandAskTransaction) -> None:
    """Raises TransactionCoordinatorNotFound, TransactionNotFound (the coordinator has not begun
    it), NotAllowed (the topic or subscription may not join), ProducerFenced, ServiceNotReady.
    """
    txn_id = TxnId(command.txnid_most_bits, command.txnid_least_bits)
    coordinators, takes_part = session.services.coordinators, False
    if coordinators.serving(txn_id.most) is None and txn_id.most < coordinators.count:
        partition = COORDINATOR_ASSIGN.partition_at(txn_id.most)
        await session.services.topics.ownership.owner_of(partition)  # acquires an unowned one
    if command.HasField("topic"):
        name = TopicName.parse(command.topic)
        subscription = command.subscription if command.HasField("subscription") else None
        claimed = command.principal if command.HasField("principal") else None
        joins = BrokerJoins(session.services, principal_of(session, claimed))
        await coordinators.get(txn_id.most)
        takes_part = await _takes_part(coordinators, txn_id, name, subscription, joins)
    if command.HasField("transactional_id"):
        joining = _session_in(command)
        principal_of(session, joining.id.owner)
        await fencing.bind_for_broker(session, txn_id, joining)
    coordinator = await coordinators.get(txn_id.most)
    require_begun(coordinator, txn_id)
    coordinators.require_durable(txn_id)
    status = coordinator.status(txn_id)
    answer = pb.CommandAskTransactionResponse(
        request_id=command.request_id, takes_part=takes_part and status is TxnStatus.OPEN
    )
    if status is not None:
        answer.prepared = status is TxnStatus.PREPARED
        answer.status = TxnStatus.OPEN if answer.prepared else status
    if (owner := coordinators.ever_owner_of(txn_id)) is not None:
        answer.owner = owner
    if why := coordinator.why_aborted(txn_id):
        answer.reason = why
    if (transaction := coordinator.metadata(txn_id)) is not None and transaction.session:
        bound_to, answer.session_epoch = transaction.session
        answer.transactional_id = bound_to.name
        if bound_to.owner is not None:
            answer.transactional_id_owner = bound_to.owner
    session.send_command(answer)


def _session_in(command: pb.CommandAskTransaction) -> SessionRef:
    """Raises NotAllowed if the transactional id is empty or too long."""
    check_id(command.transactional_id)
    has_owner = command.HasField("transactional_id_owner")
    owner = command.transactional_id_owner if has_owner else None
    return SessionRef(TransactionalId(owner, command.transactional_id), command.session_epoch)


async def _takes_part(
    coordinators: Coordinators,
    txn_id: TxnId,
    name: TopicName,
    subscription: str | None,
    joins: BrokerJoins,
) -> bool:
    """Whether the topic or subscription takes part. If the transaction spans its namespace, it does
    from now on. Raises NotAllowed if it may not, or there is no room.
    """
    joining, topic = coordinators.joining, str(name)
    try:
        if subscription is None:
            joined = joining.partition(txn_id, name, joins)
        else:
            joined = joining.subscription(txn_id, name, subscription, joins)
    except TransactionNotFound:  # it belongs to another principal: the answer names the owner
        return False
    if joined is not None:
        await asyncio.wait([joined])
    if subscription is None:
        return coordinators.has_partition(txn_id, topic)
    return coordinators.has_subscription(txn_id, topic, subscription)
