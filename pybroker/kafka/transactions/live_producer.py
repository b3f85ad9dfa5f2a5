"""A transactional producer at work: its stored state, and the transaction that it is in.

The state of a transaction is its coordinator's; here is only which transaction it is, and whether
the producer's client has ended it. A transaction that was aborted on behalf of others (its timeout,
an administrator) stays the producer's until the client aborts it, too: otherwise the second half of
its work would become a transaction of its own.
"""

import asyncio
from dataclasses import replace
from typing import Final, NamedTuple

from pybroker.base.errors import TransactionCoordinatorNotFound
from pybroker.base.names import TxnId
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.transactions.values import ProducerKey, StoredProducer
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId
from pybroker.transaction.txn_status import TxnAction, TxnStatus

ENDING: Final = frozenset((TxnStatus.COMMITTING, TxnStatus.ABORTING))


class Claim(NamedTuple):
    """How a request names its producer."""

    id: TransactionalId
    key: ProducerKey


class LiveProducer:
    def __init__(self, id: TransactionalId, stored: StoredProducer) -> None:
        self.id = id
        self.stored = stored
        self.changing = asyncio.Lock()  # one begin, end or new session at a time
        self.is_initialising = False
        self.former_key: ProducerKey | None = None  # the last one before another producer id
        # Of its next session: another client of the id (of Pulsar's, say) was faster, perhaps
        # before a restart.
        self.fenced_attempts = 0

    # -- the transaction

    def status(self, coordinators: Coordinators) -> TxnStatus | None:
        """Of the producer's transaction; None if it has none, or if its outcome was forgotten.
        Raises KafkaError.
        """
        txn_id = self.stored.txn_id
        if txn_id is None:
            return None
        try:
            begun = coordinators.begun(txn_id)
            if begun is not None and begun.session != self.stored.session_of_txn(self.id):
                return None  # a crash has lost ours before anybody heard of it
            return coordinators.status(txn_id)
        except TransactionCoordinatorNotFound as error:
            raise loading(str(error)) from error

    def open_transaction(self, coordinators: Coordinators) -> TxnId | None:
        """The transaction if it can be used. Raises KafkaError: it is prepared, is being ended, or
        was aborted on behalf of others.
        """
        txn_id = self.stored.txn_id
        if txn_id is None:
            return None
        status = self.status(coordinators)
        if status in ENDING:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{txn_id} is being ended")
        if status is TxnStatus.PREPARED:
            why = f"{txn_id} is prepared: nothing can be added, commit or abort it"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, why)
        if status is not TxnStatus.OPEN:
            raise _was_ended(self.id, txn_id, coordinators)
        return txn_id

    def settled(self, coordinators: Coordinators) -> StoredProducer:
        """The stored state after a restart: a commit that the client asked for may have been
        decided without having been noted here. An abort that is not noted was not answered; it may
        be that of a timeout.
        """
        if self.status(coordinators) is TxnStatus.COMMITTED:
            return ended(self.stored, TxnAction.COMMIT)
        return self.stored

    # -- who is it

    def with_present_id(self, claim: Claim) -> Claim:
        """The claim of an end whose answer was lost, and named another producer id."""
        if claim.key != self.former_key:
            return claim
        return Claim(claim.id, ProducerKey(self.stored.key.producer_id, -1))

    def require(self, claim: Claim, coordinators: Coordinators) -> None:
        """Raises KafkaError unless the claim is that of the newest producer."""
        self.require_session(claim, coordinators)
        if claim.key != self.stored.key:
            raise fenced(claim.id)

    def require_session(self, claim: Claim, coordinators: Coordinators) -> None:
        """Like `require`, whatever the epoch is."""
        if claim.key.producer_id != self.stored.key.producer_id:
            raise no_mapping(claim.id)
        if coordinators.ids.is_fenced(self.stored.session(self.id)):
            raise fenced(claim.id)
        if self.is_initialising:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "A newer session is beginning")


def ended(stored: StoredProducer, action: TxnAction) -> StoredProducer:
    """The producer after the end of its transaction."""
    producer_id, epoch = stored.key
    after = replace(stored, txn_id=None, bumps=False, last_action=action, kept=None)
    if not stored.bumps:
        return after
    return replace(after, key=ProducerKey(producer_id, epoch + 1), former_epoch=epoch)


def _was_ended(id: TransactionalId, txn_id: TxnId, coordinators: Coordinators) -> KafkaError:
    why = coordinators.why_aborted(txn_id)
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Transaction {txn_id} of {id.name!r} was ended" + (f": {why}" if why else ""),
    )


def fenced(id: TransactionalId) -> KafkaError:
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"A newer producer with transactional.id {id.name!r} has begun: use only one at a time",
    )


def no_mapping(id: TransactionalId) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"transactional.id {id.name!r} does not belong to this producer id: initialise it again",
    )


def loading(why: str) -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, why)
