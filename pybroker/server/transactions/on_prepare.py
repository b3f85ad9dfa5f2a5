"""PREPARE_TXN and LIST_PREPARED_TXNS: the transaction waits for its owner's decision, for as long
as it takes; and what waits.

Differs: Apache Pulsar has no such commands; CONNECTED announces them (`supports_preparing`).
"""

from collections.abc import Iterator
from typing import Final

from pybroker.base.errors import AuthorizationError, NotAllowed
from pybroker.base.names import TxnId
from pybroker.security.preparing import may_prepare, why_not_prepare
from pybroker.server.connections.connection import Connection
from pybroker.server.transactions import fencing
from pybroker.server.transactions.transaction_share import is_exempt
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.live_transaction import MAX_NAME_CHARS, TransactionMetadata
from pybroker.wire import pulsar_api_pb2 as pb

_MOST_LISTED: Final = 500  # in one answer


async def prepare(session: Connection, command: pb.CommandPrepareTxn) -> None:
    """Raises NotAllowed, AuthorizationError (the role may not prepare), and the errors of
    `Preparing.prepare`.
    """
    txn_id = TxnId(command.txnid_most_bits, command.txnid_least_bits)
    if len(command.name) > MAX_NAME_CHARS:
        raise NotAllowed(
            f"The name of a prepared transaction has {len(command.name)} characters; it may have "
            f"{MAX_NAME_CHARS}"
        )
    _require_role(session)
    coordinator = await _coordinator(session, txn_id.most)
    fencing.require_current(session, coordinator, [txn_id])
    config = session.services.topics.policies.config
    most = 0 if is_exempt(session) else config.max_prepared_transactions_per_principal
    await coordinator.preparing.prepare(txn_id, command.name, session.principal, most)
    answer = pb.CommandPrepareTxnResponse(
        request_id=command.request_id,
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
    )
    session.send_command(answer)


def _require_role(session: Connection) -> None:
    if not may_prepare(session.services.topics.policies.config, session.owner, session.principal):
        raise AuthorizationError(why_not_prepare(session.owner))


async def _coordinator(session: Connection, tc_id: int) -> TransactionCoordinator:
    if not session.services.config.transaction_coordinator_enabled:
        raise NotAllowed(
            "Transactions are disabled; set transactionCoordinatorEnabled=true in the "
            "broker's configuration"
        )
    return await session.services.coordinators.get(tc_id)


async def list_prepared(session: Connection, command: pb.CommandListPreparedTxns) -> None:
    """Raises NotAllowed if transactions are disabled, TransactionCoordinatorNotFound."""
    coordinator = await _coordinator(session, command.tc_id)
    answer = pb.CommandListPreparedTxnsResponse(request_id=command.request_id)
    now_ms = session.services.clock.now_ms()
    for transaction in _chosen(session, coordinator, command):
        if len(answer.transaction) == _MOST_LISTED:
            answer.has_more = True
            break
        _describe(transaction, answer.transaction.add(), now_ms)
    session.send_command(answer)


def _chosen(
    session: Connection, coordinator: TransactionCoordinator, command: pb.CommandListPreparedTxns
) -> Iterator[TransactionMetadata]:
    after = command.after_least_bits if command.HasField("after_least_bits") else -1
    for each in sorted(coordinator.prepared, key=lambda each: each.txn_id.least):
        name = "" if each.prepared is None else each.prepared.name
        if each.txn_id.least <= after or (command.HasField("name") and name != command.name):
            continue
        # Others may still be undone by a crash.
        if coordinator.preparing.is_prepared(each.txn_id) and session.principal in (
            None,
            each.owner,
        ):
            yield each


def _describe(transaction: TransactionMetadata, into: pb.PreparedTxn, now_ms: int) -> None:
    assert transaction.prepared is not None
    into.txnid_least_bits = transaction.txn_id.least
    into.name = transaction.prepared.name
    if transaction.owner is not None:
        into.owner = transaction.owner
    into.prepared_ms = transaction.prepared.at_ms
    into.age_ms = max(0, now_ms - transaction.prepared.at_ms)
