"""Sessions of transactional ids, for handlers: which session a command belongs to, and whether a
newer one has fenced it.

A transaction belongs to a session from its beginning if NEW_TXN names the session or arrives on a
connection that has exactly one; otherwise from the first message of a producer with an id. The
coordinator's log records this: in the transaction's first record, or later in a record of its own,
before the message is published.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from pybroker.base.errors import NotAllowed, PulsarError, ServiceNotReady
from pybroker.base.names import TxnId
from pybroker.broker.persistent.producers import Producer
from pybroker.server.connections.connection import Connection
from pybroker.server.transactions.held_ids import Claim
from pybroker.server.transactions.transaction_owner import check_owner
from pybroker.server.transactions.transactional_session import TransactionalSession
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.remote_coordinators import RemoteCoordinators
from pybroker.transaction.coordinator.sessions.transactional_ids import (
    SessionRef,
    fenced,
    producer_fenced,
)
from pybroker.transaction.txn_status import TxnStatus, coordinator_not_ready
from pybroker.wire import pulsar_api_pb2 as pb

_EPOCH_BITS: Final = 32  # of a topic epoch; the session's epoch is in the bits above


# -- producers


async def joined(session: Connection, producer: Producer) -> TransactionalSession | None:
    """The session of a producer's transactional id, once it holds the id; None without an id.

    Raises ProducerFenced, NotAllowed, ServiceNotReady.
    """
    told = producer.topic_epoch or 0
    claim = Claim.of_producer(session.owner, producer.properties, told)
    if claim is None:
        return None
    if producer.topic_epoch is not None:
        producer.topic_epoch = told & ((1 << _EPOCH_BITS) - 1)
    sessions = session.services.sessions
    found = sessions.granted(session, claim) or await sessions.join(session, claim)
    assert found.ref is not None
    producer.session_epoch = found.ref.epoch
    return found


def topic_epoch_to_tell(producer: Producer) -> int | None:
    """The epoch that clients repeat when they reconnect, including that of the session, if any."""
    if not producer.session_epoch:
        return producer.topic_epoch
    return (producer.session_epoch << _EPOCH_BITS) | (producer.topic_epoch or 0)


def bound(
    session: Connection, joined: TransactionalSession | None, txn_id: TxnId | None
) -> asyncio.Future[TxnId] | None:
    """None: a producer of the session `joined` may publish. Otherwise a future: retry once it is
    done or has failed. The future is shared: do not cancel it.

    Raises ProducerFenced, InvalidTxnStatus (the transaction belongs to an older session),
    NotAllowed (to another id), AuthorizationError (to another principal),
    TransactionCoordinatorNotFound (not known here yet).
    """
    if joined is None:
        return None
    joined.require_current()
    if txn_id is None:
        return None
    if (binding := session.services.sessions.binding.get(txn_id)) is not None:
        return binding
    coordinators = session.services.coordinators
    assert joined.ref is not None
    if (remote := coordinators.remote(txn_id.most)) is not None:
        return _bound_to_another(session, remote, joined.ref, txn_id)
    transaction, coordinator = coordinators.begun(txn_id), coordinators.serving(txn_id.most)
    if transaction is None and coordinator is None and coordinators.may_open(txn_id.most):
        raise coordinator_not_ready(txn_id.most)
    if transaction is None or transaction.status is not TxnStatus.OPEN:
        return None  # its topic refuses the message
    if transaction.session == joined.ref:
        return None
    check_owner(session, txn_id)  # otherwise fencing could abort the transactions of others
    if transaction.session is not None:
        raise _of_another(session, txn_id, transaction.session)
    if coordinator is None:
        raise coordinator_not_ready(txn_id.most)
    return _binding(session, coordinator, txn_id, joined.ref)


def _binding(
    session: Connection, coordinator: TransactionCoordinator, txn_id: TxnId, ref: SessionRef
) -> asyncio.Future[TxnId]:
    under_way = session.services.sessions.binding
    binding = under_way[txn_id] = coordinator.bind(txn_id.least, ref)
    binding.add_done_callback(lambda _: under_way.pop(txn_id))
    return binding


def _bound_to_another(
    session: Connection, remote: RemoteCoordinators, ref: SessionRef, txn_id: TxnId
) -> asyncio.Future[TxnId] | None:
    """Like `bound`, for a coordinator on another broker, which checks the owner."""
    asking = remote.bind(txn_id, ref, session.owner or session.address)
    belongs_to = remote.session_of(txn_id)
    check_owner(session, txn_id)
    if asking is None and belongs_to not in (None, ref):
        raise _of_another(session, txn_id, belongs_to)
    return asking


async def bind_for_broker(session: Connection, txn_id: TxnId, ref: SessionRef) -> None:
    """Binds the transaction to the session of a producer on another broker; the coordinator is on
    this one. The binding is durable when this returns, unless the transaction has ended or belongs
    to another session.

    Raises ProducerFenced, NotAllowed (it belongs to another principal), ServiceNotReady (the
    session is not known here yet), TransactionCoordinatorNotFound.
    """
    services = session.services
    coordinators, ids = services.coordinators, services.coordinators.ids
    coordinator = await coordinators.get(txn_id.most)
    if (known := ids.get(ref.id)) is None or known.epoch < ref.epoch:
        if coordinators.remote_fencing is not None:
            await coordinators.remote_fencing.caught_up()
        if (known := ids.get(ref.id)) is None or known.epoch < ref.epoch:
            raise ServiceNotReady(
                f"Session {ref.epoch} of transactional id {ref.id.name!r} is unknown here"
            )
    if known.epoch > ref.epoch:
        raise producer_fenced(ref.id.name)
    if (binding := services.sessions.binding.get(txn_id)) is None:
        transaction = coordinator.metadata(txn_id)
        if transaction is None or transaction.status is not TxnStatus.OPEN:
            return
        if transaction.session is not None:
            return  # the answer names the session
        if transaction.owner != ref.id.owner:
            raise NotAllowed(
                f"Transaction {txn_id} belongs to another principal: producers with a "
                "transactional id cannot publish in it"
            )
        binding = _binding(session, coordinator, txn_id, ref)
    await asyncio.wait([binding])
    binding.result()


def _of_another(session: Connection, txn_id: TxnId, other: SessionRef) -> PulsarError:
    if session.services.coordinators.ids.is_fenced(other):
        return fenced(txn_id, other)
    return NotAllowed(
        f"Transaction {txn_id} belongs to a session of transactional id {other.id.name!r}: "
        "producers with another id cannot publish in it"
    )


# -- transactions


def claimed(session: Connection, command: pb.CommandNewTxn) -> Claim | None:
    """The session claim in NEW_TXN, if any. Raises NotAllowed."""
    if not command.HasField("transactional_id"):
        return None
    name, epoch = command.transactional_id, command.session_epoch
    return Claim.of(session.owner, name, command.session, epoch)


def session_of_new(session: Connection, joined: TransactionalSession | None) -> SessionRef | None:
    """The session to which a new transaction belongs, if any. Raises ProducerFenced."""
    if joined is None and len(session.sessions) == 1:
        (joined,) = session.sessions.values()
    if joined is None or joined.ref is None:  # it does not hold its id yet
        return None
    joined.require_current()
    if session.services.coordinators.ids.is_fenced(joined.ref):
        raise joined.fenced()
    return joined.ref


def require_current(
    session: Connection, coordinator: TransactionCoordinator, txn_ids: Iterable[TxnId]
) -> None:
    """Checks that no newer session has fenced the transactions' sessions. The coordinator itself
    handles transactions that are already decided, and refuses those of other principals.

    Raises InvalidTxnStatus.
    """
    ids = session.services.coordinators.ids
    if not ids.are_any:
        return
    for txn_id in txn_ids:
        transaction = coordinator.metadata(txn_id)
        if transaction is None or transaction.session is None:
            continue
        if session.principal is not None and transaction.owner not in (None, session.principal):
            continue
        if transaction.status is TxnStatus.OPEN and ids.is_fenced(transaction.session):
            raise fenced(txn_id, transaction.session)
