"""A transactional producer as Kafka's clients know it: an id with an epoch."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef, TransactionalId
from pybroker.transaction.txn_status import TxnAction

MAX_EPOCH: Final = 32_766  # the last one that a producer gets; then it gets another id
NO_EPOCH: Final = -1


class ProducerKey(NamedTuple):
    """The id and epoch with which a producer marks requests and batches."""

    producer_id: int
    epoch: int


class Kept(NamedTuple):
    """The producer of an earlier session, whose transaction is prepared and waits for the newest
    one to end it.
    """

    key: ProducerKey
    session_epoch: int


@dataclass(frozen=True, slots=True)
class StoredProducer:
    """What outlives the broker. `txn_id` is set from the beginning of a transaction until its end
    is known to be the client's wish; a transaction that timed out stays there until the client
    aborts it, too.
    """

    key: ProducerKey
    session_epoch: int  # of the transactional id
    timeout_ms: int | None  # None: its transactions have no timeout (two-phase commit)
    txn_id: TxnId | None = None
    bumps: bool = False  # the transaction's end raises the epoch: transaction.version 2
    last_action: TxnAction | None = None  # the end of the previous transaction
    former_epoch: int = NO_EPOCH  # with which the client asked for this epoch, or ended
    kept: Kept | None = None  # who began the transaction, if not this session

    def session(self, transactional_id: TransactionalId) -> SessionRef:
        return SessionRef(transactional_id, self.session_epoch)

    def session_of_txn(self, transactional_id: TransactionalId) -> SessionRef:
        epoch = self.session_epoch if self.kept is None else self.kept.session_epoch
        return SessionRef(transactional_id, epoch)


class Inited(NamedTuple):
    """What InitProducerId answers: the producer, and who began the transaction that was kept."""

    key: ProducerKey
    ongoing: ProducerKey | None = None

    @classmethod
    def of(cls, stored: StoredProducer) -> "Inited":
        return cls(stored.key, None if stored.kept is None else stored.kept.key)
