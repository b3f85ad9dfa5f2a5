"""Two-phase commit of Kafka's producers: a transaction that outlives its producer.

A client prepares without a word to the broker: it flushes, and notes its producer id and epoch in
its database. So transactions of a producer with `enable2Pc` have no timeout, and count as prepared
ones of their owner. After a crash the next producer asks for what is left (`keepPreparedTxn`). Then
the transaction becomes PREPARED in its coordinator before older sessions are fenced, and the next
producer ends it in its own epoch. One that does not ask for it aborts it. Source: KIP-939.
"""

from pybroker.base.errors import NotAllowed, PulsarError, TransactionCoordinatorNotFound
from pybroker.base.names import TxnId
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.transactions.live_producer import LiveProducer, loading
from pybroker.kafka.transactions.surroundings import TxnClient
from pybroker.kafka.transactions.values import Kept
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.live_transaction import MAX_NAME_CHARS
from pybroker.transaction.txn_status import UNDECIDED, TxnAction, TxnStatus


async def keep(
    coordinators: Coordinators, client: TxnClient, producer: LiveProducer, most: int
) -> Kept | None:
    """Prepares the producer's transaction, durably; None if there is none to decide. `most`: see
    `Preparing.prepare`. Raises KafkaError.
    """
    if producer.changing.locked():
        why = "The older producer's last request is still being served"
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, why)
    stored, txn_id = producer.stored, producer.stored.txn_id
    if txn_id is None or producer.status(coordinators) not in UNDECIDED:
        return None
    coordinator = await _coordinator_of(coordinators, txn_id)
    live = coordinator.metadata(txn_id)
    if live is None:
        return None
    name = _name_of(producer) if live.prepared is None else live.prepared.name
    try:
        await coordinator.preparing.prepare(txn_id, name, client.principal, most)
    except TransactionCoordinatorNotFound as error:
        raise loading(str(error)) from error
    except NotAllowed as error:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, str(error)) from error
    except PulsarError as error:  # it was decided meanwhile
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, str(error)) from error
    return stored.kept or Kept(stored.key, stored.session_epoch)


async def abort_kept(coordinators: Coordinators, client: TxnClient, producer: LiveProducer) -> None:
    """Aborts what `keep` has prepared, and nobody else; whoever begins the next session waits for
    its end. Raises KafkaError.
    """
    txn_id = producer.stored.txn_id
    if txn_id is None or producer.status(coordinators) is not TxnStatus.PREPARED:
        return
    coordinator = await _coordinator_of(coordinators, txn_id)
    live = coordinator.metadata(txn_id)
    if live is None or live.prepared is None or live.prepared.name != _name_of(producer):
        return
    try:
        coordinator.end(txn_id, TxnAction.ABORT, client.principal)
    except PulsarError as error:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, str(error)) from error


def _name_of(producer: LiveProducer) -> str:
    return f"kafka:{producer.id.name}"[:MAX_NAME_CHARS]


async def _coordinator_of(coordinators: Coordinators, txn_id: TxnId) -> TransactionCoordinator:
    """Raises KafkaError (COORDINATOR_LOAD_IN_PROGRESS) while it is not here."""
    try:
        return await coordinators.get(txn_id.most)
    except TransactionCoordinatorNotFound as error:
        raise loading(str(error)) from error
