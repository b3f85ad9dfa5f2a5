"""Sessions of transactional ids, for handlers: which session a command belongs to, and whether a
newer one has fenced it.

A transaction belongs to a session from its beginning if NEW_TXN names the session or arrives on a
connection that has exactly one; otherwise from the first message of a producer with an id. This is
recorded in its coordinator's log: at the beginning together with the record written anyway, later
in its own record, before the message is published.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from pybroker.base.errors import NotAllowed, PulsarError
from pybroker.base.names import TxnId
from pybroker.broker.producers import Producer
from pybroker.server.connection import Connection
from pybroker.server.transaction_owner import check_owner
from pybroker.server.transactional_session import TransactionalSession
from pybroker.server.transactional_sessions import Claim
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.transactional_ids import SessionRef, fenced
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb

_EPOCH_BITS: Final = 32  # of a topic epoch; the session's epoch is in the bits above


# -- producers


async def joined(session: Connection, producer: Producer) -> TransactionalSession | None:
    """The session of a producer's transactional id, once it holds the id; None: no id.

    Raises ProducerFenced, NotAllowed, ServiceNotReady.
    """
    told = producer.topic_epoch or 0
    claim = Claim.of_producer(session.owner, producer.properties, told)
    if claim is None:
        return None
    _require_alone(session)
    if producer.topic_epoch is not None:
        producer.topic_epoch = told & ((1 << _EPOCH_BITS) - 1)
    sessions = session.services.sessions
    found = sessions.granted(session, claim) or await sessions.join(session, claim)
    assert found.ref is not None
    producer.session_epoch = found.ref.epoch
    return found


def _require_alone(session: Connection) -> None:
    """An older session may be on another broker, which would not learn that it is fenced."""
    if session.services.coordinators.are_shared:
        raise NotAllowed(
            "Transactional ids need a broker that is alone: leave txn.transactional.id out, or "
            "use pybroker standalone"
        )


def topic_epoch_to_tell(producer: Producer) -> int | None:
    """The epoch that clients repeat when they reconnect, including the session's, if any."""
    if not producer.session_epoch:
        return producer.topic_epoch
    return (producer.session_epoch << _EPOCH_BITS) | (producer.topic_epoch or 0)


def bound(
    session: Connection, joined: TransactionalSession | None, txn_id: TxnId | None
) -> asyncio.Future[TxnId] | None:
    """None: a producer of this session may publish. Otherwise a future: retry when it is done or
    has failed. It is shared and must not be cancelled.

    Raises ProducerFenced, InvalidTxnStatus (the transaction belongs to an older session),
    NotAllowed (to another id), AuthorizationError (to another principal).
    """
    if joined is None:
        return None
    joined.require_current()
    if txn_id is None:
        return None
    if (binding := joined.binding.get(txn_id)) is not None:
        return binding
    coordinator = session.services.coordinators.serving(txn_id.most)
    transaction = None if coordinator is None else coordinator.metadata(txn_id)
    if coordinator is None or transaction is None or transaction.status is not TxnStatus.OPEN:
        return None  # its topic refuses it
    if transaction.session == joined.ref:
        return None
    check_owner(session, txn_id)  # otherwise a fencing session could abort foreign transactions
    if transaction.session is not None:
        raise _of_another(session, txn_id, transaction.session)
    assert joined.ref is not None
    binding = joined.binding[txn_id] = coordinator.bind(txn_id.least, joined.ref)
    binding.add_done_callback(lambda _: joined.binding.pop(txn_id))
    return binding


def _of_another(session: Connection, txn_id: TxnId, other: SessionRef) -> PulsarError:
    if session.services.coordinators.ids.is_fenced(other):
        return fenced(txn_id, other)
    return NotAllowed(
        f"Transaction {txn_id} belongs to a session of transactional id {other.id.name!r}: "
        "producers with another id cannot publish in it"
    )


# -- transactions


def claimed(session: Connection, command: pb.CommandNewTxn) -> Claim | None:
    """The session claim in NEW_TXN. Raises NotAllowed."""
    if not command.HasField("transactional_id"):
        return None
    _require_alone(session)
    name, epoch = command.transactional_id, command.session_epoch
    return Claim.of(session.owner, name, command.session, epoch)


def session_of_new(session: Connection, joined: TransactionalSession | None) -> SessionRef | None:
    """The session to which a transaction belongs from its beginning. Raises ProducerFenced."""
    if joined is None and len(session.sessions) == 1:
        (joined,) = session.sessions.values()
    if joined is None:
        return None
    joined.require_current()
    return joined.ref


def require_current(
    session: Connection, coordinator: TransactionCoordinator, txn_ids: Iterable[TxnId]
) -> None:
    """Checks that no newer session has fenced theirs; decided ones are left to the coordinator.

    Raises InvalidTxnStatus.
    """
    ids = session.services.coordinators.ids
    if not ids.are_any:
        return
    for txn_id in txn_ids:
        transaction = coordinator.metadata(txn_id)
        if transaction is None or transaction.session is None:
            continue
        if transaction.status is TxnStatus.OPEN and ids.is_fenced(transaction.session):
            raise fenced(txn_id, transaction.session)
