"""EndTxn: how a producer comes from the end of a transaction to the beginning of the next.

With transaction.version 2, each end that is answered raises the epoch, even if there was nothing to
abort: the client begins at sequence 0 again, and what it sent before may still be on its way. It
must not become a part of the next transaction, nor be taken for its first batches. Source: KIP-890.
"""

import asyncio
from dataclasses import replace

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import PulsarError, TransactionCoordinatorNotFound
from pybroker.base.names import TxnId
from pybroker.kafka.coordinator.shard import Shard
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.offsets.records import ProducerRecord
from pybroker.kafka.transactions.live_producer import (
    ENDING,
    Claim,
    LiveProducer,
    ended,
    fenced,
    loading,
)
from pybroker.kafka.transactions.surroundings import ProducerIds, TxnClient
from pybroker.kafka.transactions.values import MAX_EPOCH, ProducerKey, StoredProducer
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.txn_status import TxnAction


def store(shard: Shard, producer: LiveProducer, stored: StoredProducer) -> None:
    """In force at once, and durable when `shard.durable` of the producer's id returns."""
    producer.stored = stored
    shard.log.append(ProducerRecord(producer.id, stored))


async def next_key(producer_ids: ProducerIds, key: ProducerKey) -> ProducerKey:
    """The next epoch; another id after the last one. Raises KafkaError."""
    if key.epoch < MAX_EPOCH:
        return ProducerKey(key.producer_id, key.epoch + 1)
    try:
        return ProducerKey(await producer_ids.new(), 0)
    except ManagedLedgerError as error:
        raise loading(str(error)) from error


class Ends:
    def __init__(self, coordinators: Coordinators, producer_ids: ProducerIds) -> None:
        self._coordinators = coordinators
        self._producer_ids = producer_ids

    async def end(
        self,
        client: TxnClient,
        shard: Shard,
        producer: LiveProducer,
        claim: Claim,
        action: TxnAction,
        bumps: bool,
    ) -> ProducerKey:
        """As `KafkaTransactions.end`; the caller holds `producer.changing`."""
        claim = producer.with_present_id(claim)
        producer.require_session(claim, self._coordinators)
        if claim.key != producer.stored.key:
            return _answered_before(producer.stored, claim, action)
        if producer.stored.txn_id is not None:
            await self._agree_on_epoch(shard, producer, bumps)
            return await self._end_and_note(client, shard, producer, claim, action)
        if bumps and action is TxnAction.ABORT:
            return await self._abort_nothing(shard, producer, claim)
        if bumps or producer.stored.last_action is not action:
            raise _in_no_transaction(claim)
        return claim.key

    async def _agree_on_epoch(self, shard: Shard, producer: LiveProducer, bumps: bool) -> None:
        """The version of the end decides, as in Kafka. When the transaction began, it was guessed:
        nearly always rightly.
        """
        if producer.stored.bumps is not bumps:
            store(shard, producer, replace(producer.stored, bumps=bumps))
            await shard.durable(producer.id)

    async def _end(
        self, client: TxnClient, producer: LiveProducer, txn_id: TxnId, action: TxnAction
    ) -> None:
        if producer.status(self._coordinators) is None and action is TxnAction.ABORT:
            return  # it was aborted so long ago that its outcome is forgotten
        try:
            coordinator = await self._coordinators.get(txn_id.most)
            await asyncio.shield(coordinator.end(txn_id, action, client.principal))
        except TransactionCoordinatorNotFound as error:
            raise loading(str(error)) from error
        except PulsarError as error:
            raise self._not_ended(producer, str(error)) from error

    def _not_ended(self, producer: LiveProducer, why: str) -> KafkaError:
        if producer.status(self._coordinators) in ENDING:
            return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, why)
        return KafkaError(ErrorCode.TRANSACTION_ABORTABLE, why)

    async def _end_and_note(
        self,
        client: TxnClient,
        shard: Shard,
        producer: LiveProducer,
        claim: Claim,
        action: TxnAction,
    ) -> ProducerKey:
        """The answer does not wait for a record of what the coordinator would tell after a crash;
        for the rest it does: others had ended the transaction, or the producer has another id.
        """
        stored = producer.stored
        assert stored.txn_id is not None
        await self._end(client, producer, stored.txn_id, action)
        after = await self._after(producer, stored, action)
        _require_unchanged(producer, stored, claim)
        if after == producer.settled(self._coordinators):
            producer.stored = after
            shard.log.append_without_hurry(ProducerRecord(producer.id, after))
        else:
            store(shard, producer, after)
            await shard.durable(producer.id)
        try:
            await self._coordinators.ids.used(producer.id)
        except ManagedLedgerError as error:
            raise loading(str(error)) from error
        return after.key

    async def _abort_nothing(
        self, shard: Shard, producer: LiveProducer, claim: Claim
    ) -> ProducerKey:
        stored = producer.stored
        after = await self._after(producer, replace(stored, bumps=True), TxnAction.ABORT)
        _require_unchanged(producer, stored, claim)
        store(shard, producer, after)
        await shard.durable(producer.id)
        return after.key

    async def _after(
        self, producer: LiveProducer, stored: StoredProducer, action: TxnAction
    ) -> StoredProducer:
        """The producer after the end. Raises KafkaError."""
        if not stored.bumps or stored.key.epoch < MAX_EPOCH - 1:
            return ended(stored, action)
        key = await next_key(self._producer_ids, ProducerKey(-1, MAX_EPOCH))
        producer.former_key = stored.key
        return replace(ended(stored, action), key=key)


def _require_unchanged(producer: LiveProducer, stored: StoredProducer, claim: Claim) -> None:
    """Raises KafkaError: a newer producer has begun meanwhile, whose record is not this one's."""
    if producer.stored is not stored:
        raise fenced(claim.id)


def _answered_before(stored: StoredProducer, claim: Claim, action: TxnAction) -> ProducerKey:
    """The answer to an end that has raised the epoch, and was lost. Raises KafkaError if the claim
    is not that of the newest producer.
    """
    producer_id, epoch = stored.key
    an_end_raised_it = not epoch or stored.former_epoch == epoch - 1  # else a newer producer
    if claim.key != (producer_id, epoch - 1) or stored.last_action is None or not an_end_raised_it:
        raise fenced(claim.id)
    if stored.last_action is not action:
        raise _in_no_transaction(claim)
    return stored.key


def _in_no_transaction(claim: Claim) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE, f"transactional.id {claim.id.name!r} is in no transaction"
    )
