"""What InitProducerId, AddPartitionsToTxn, EndTxn and their like do, without their bytes.

    transactional.id          the transactional id of the same name and principal
    InitProducerId            a newer session of it: durable, then older sessions are fenced, their
                              open transactions aborted, and those that are ending have ended
    a transaction             one transaction of a coordinator, bound to that session
    a partition, a group      a participant: a topic; an offsets log with the group

So Kafka's and Pulsar's producers with one id fence each other, and the transactions are those of
the console, the limits and the metrics. What is known of producers (ids, epochs, the transaction
each is in) is in the offsets log that the hash of the transactional id names.

Order: the record of the producer and those of the transaction are gathered in one turn, and the
answer waits for all of them. A crash in between leaves a transaction that nobody was told of; the
producer's next one aborts it. Source: KIP-98, KIP-360, KIP-890.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import (
    InvalidTxnStatus,
    NotAllowed,
    ProducerFenced,
    PulsarError,
    ServiceNotReady,
    TooManyRequests,
    TransactionCoordinatorNotFound,
)
from pybroker.base.names import MAX_NAME_CHARS, TopicName, TxnId
from pybroker.broker.topics import Topics
from pybroker.broker.transactions.txn_participants import partition_to_add
from pybroker.kafka.coordinator.committing import Committer, Errors, Wanted, commit
from pybroker.kafka.coordinator.group_coordinator import GroupCoordinator
from pybroker.kafka.coordinator.shard import Shard
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.offsets.logs import COUNT, number_of, topic_of_group
from pybroker.kafka.offsets.records import ProducerRecord, TopicPartition
from pybroker.kafka.transactions.ends import Ends, next_key, store
from pybroker.kafka.transactions.live_producer import (
    Claim,
    LiveProducer,
    fenced,
    loading,
    no_mapping,
)
from pybroker.kafka.transactions.remote_producers import Part, RemoteProducers
from pybroker.kafka.transactions.surroundings import (
    ProducerIds,
    Sessions,
    TransactionLimits,
    TxnClient,
)
from pybroker.kafka.transactions.two_phases import abort_kept, keep
from pybroker.kafka.transactions.values import (
    MAX_EPOCH,
    NO_EPOCH,
    Inited,
    ProducerKey,
    StoredProducer,
)
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.ends.timeline import DecidedBy
from pybroker.transaction.coordinator.sessions.transactional_ids import (
    MAX_ID_CHARS,
    SessionRef,
    TransactionalId,
    why_fenced,
)
from pybroker.transaction.txn_status import TxnAction, TxnStatus

_FULL_WAIT_S: Final = 0.1  # before a refusal, to slow down retries
_AGAIN: Final = ErrorCode.CONCURRENT_TRANSACTIONS


class KafkaTransactions:
    def __init__(
        self,
        groups: GroupCoordinator,
        coordinators: Coordinators,
        topics: Topics,
        sessions: Sessions,
        producer_ids: ProducerIds,
        limits: TransactionLimits,
        remote: RemoteProducers | None = None,
    ) -> None:
        """`remote`: only in a cluster."""
        self._groups = groups
        self._coordinators = coordinators
        self._topics = topics
        self._sessions = sessions
        self._producer_ids = producer_ids
        self._limits = limits
        self._remote = remote
        self._ends = Ends(coordinators, producer_ids)
        self._live: dict[TransactionalId, tuple[Shard, LiveProducer]] = {}
        groups.when_expiring = self._forget_expired
        groups.when_lost = self._forget_lost

    # -- producers

    async def shard_of(self, id: TransactionalId) -> Shard:
        """Raises KafkaError for an id that is empty or too long, and while its coordinator is not
        here.
        """
        if not 0 < len(id.name) <= MAX_ID_CHARS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"transactional.id must have 1 to {MAX_ID_CHARS} characters",
            )
        return await self._groups.shard(number_of(id.name))

    async def _producer(self, claim: Claim) -> tuple[Shard, LiveProducer]:
        """Raises KafkaError (INVALID_PRODUCER_ID_MAPPING) if the id has no producer, and those of
        `shard_of`.
        """
        shard = await self.shard_of(claim.id)
        producer = self._known(shard, claim.id)
        if producer is None:
            raise no_mapping(claim.id)
        return shard, producer

    def _known(self, shard: Shard, id: TransactionalId) -> LiveProducer | None:
        known = self._live.get(id)
        if known is not None and known[0] is shard:
            return known[1]
        stored = shard.log.state.producers.get(id)
        if stored is None:
            return None
        producer = LiveProducer(id, stored)
        self._live[id] = shard, producer
        if (settled := producer.settled(self._coordinators)) is not stored:
            store(shard, producer, settled)
        return producer

    def _forget_expired(self, shard: Shard) -> None:
        """Forget the producers whose transactional ids have expired."""
        for id, stored in list(shard.log.state.producers.items()):
            if stored.txn_id is None and self._coordinators.ids.get(id) is None:
                self._live.pop(id, None)
                shard.log.append(ProducerRecord(id, None))

    def _forget_lost(self, shard: Shard) -> None:
        """Another broker has the producers of this log."""
        self._live = {id: known for id, known in self._live.items() if known[0] is not shard}

    async def init(
        self,
        client: TxnClient,
        id: TransactionalId,
        timeout_ms: int | None,
        claimed: ProducerKey | None,
        keeps: bool = False,
    ) -> Inited:
        """The id and epoch of a new producer, or of one that goes on after an error (`claimed`).
        Everything of older ones is fenced and ended when this returns; with `keeps`, a transaction
        that is open waits to be ended. `timeout_ms`: None for none. Raises KafkaError.
        """
        shard = await self.shard_of(id)
        _require_coordinators(self._coordinators)
        if timeout_ms is not None and not 0 < timeout_ms <= self._limits.max_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"transaction.timeout.ms must be 1 to {self._limits.max_timeout_ms} "
                "(maxTransactionTimeoutMs)",
            )
        producer = self._known(shard, id)
        if producer is None:
            if claimed is not None:
                raise no_mapping(id)
            blank = StoredProducer(ProducerKey(-1, MAX_EPOCH), 0, timeout_ms)
            producer = LiveProducer(id, blank)
            self._live[id] = shard, producer
        if producer.is_initialising:
            raise KafkaError(_AGAIN, f"Another producer with transactional.id {id.name!r} begins")
        if (answered := self._init_again(producer, claimed)) is not None:
            return answered
        producer.is_initialising = True
        try:
            return await self._init(client, shard, producer, timeout_ms, claimed, keeps)
        finally:
            producer.is_initialising = False
            if producer.stored.key.producer_id < 0:
                self._live.pop(id, None)

    def _init_again(self, producer: LiveProducer, claimed: ProducerKey | None) -> Inited | None:
        """The answer that was lost, if the producer asks again for its newer epoch. Raises
        KafkaError if it is not the newest producer.
        """
        if claimed is None:
            return None
        if self._coordinators.ids.is_fenced(producer.stored.session(producer.id)):
            raise fenced(producer.id)
        current = producer.stored.key
        if claimed.producer_id != current.producer_id:
            raise no_mapping(producer.id)
        if claimed.epoch == current.epoch:
            return None
        if claimed.epoch == producer.stored.former_epoch:
            return Inited.of(producer.stored)
        raise fenced(producer.id)

    async def _init(
        self,
        client: TxnClient,
        shard: Shard,
        producer: LiveProducer,
        timeout_ms: int | None,
        claimed: ProducerKey | None,
        keeps: bool,
    ) -> Inited:
        kept, coordinators = None, self._coordinators
        if keeps:
            kept = await keep(coordinators, client, producer, self._most_prepared(client))
        else:
            await abort_kept(coordinators, client, producer)
        before = producer.stored.key
        key = await next_key(self._producer_ids, before)
        name = f"kafka-{key.producer_id}-{key.epoch}-{producer.fenced_attempts}"
        try:
            session = await self._sessions.begin(producer.id, name, client)
        except ServiceNotReady as error:  # asked again, the session of this name goes on
            raise KafkaError(_AGAIN, str(error)) from error
        except ProducerFenced as error:  # and a session of this name will never begin
            producer.fenced_attempts += 1
            raise KafkaError(_AGAIN, str(error)) from error
        except NotAllowed as error:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, str(error)) from error
        except (ManagedLedgerError, TransactionCoordinatorNotFound) as error:
            raise loading(str(error)) from error
        former = NO_EPOCH if claimed is None else claimed.epoch
        async with producer.changing:  # an END that was in progress is noted, and may be answered
            if producer.stored.key != before:
                key = await next_key(self._producer_ids, producer.stored.key)
            stored = StoredProducer(key, session.epoch, timeout_ms, former_epoch=former, kept=kept)
            if kept is not None:
                stored = replace(stored, txn_id=producer.stored.txn_id, bumps=True)
            store(shard, producer, stored)
            await shard.durable(producer.id)
        return Inited.of(stored)

    def _most_prepared(self, client: TxnClient) -> int:
        """Of the client, in a coordinator; 0: no limit."""
        config = self._topics.policies.config
        return 0 if client.principal is None else config.max_prepared_transactions_per_principal

    # -- the contents of a transaction

    async def add_partitions(
        self, client: TxnClient, claim: Claim, topics: Sequence[TopicName]
    ) -> TxnId:
        """The transaction, begun if there is none, with these topics; durable when this returns.
        Raises KafkaError.
        """
        names = [await self._to_add(each) for each in topics]
        shard, producer = await self._producer(claim)
        return await self._with(client, shard, producer, claim, names, [], bumps=False)

    async def add_group(self, client: TxnClient, claim: Claim, group_id: str) -> TxnId:
        """Like `add_partitions`, with the offsets of a group."""
        shard, producer = await self._producer(claim)
        groups = [_participant(group_id)]
        return await self._with(client, shard, producer, claim, [], groups, bumps=False)

    async def to_publish(
        self, client: TxnClient, claim: Claim, topic: TopicName, adds: bool
    ) -> TxnId:
        """The transaction of a batch for this topic. With `adds`, the topic is added to it if
        necessary: Produce from version 12 on. Raises KafkaError.
        """
        known, part = self._live.get(claim.id), Part(topic)
        if known is not None and (found := self._at_once(known[1], claim, topic)) is not None:
            return found
        remote = self._remote
        if remote is not None and (there := remote.known(claim, part)) is not None:
            return there
        return await self._take_part_anywhere(client, claim, part, adds)

    async def _take_part_anywhere(
        self, client: TxnClient, claim: Claim, part: Part, adds: bool
    ) -> TxnId:
        try:
            return await self.take_part(client, claim, part, adds)
        except KafkaError as error:
            if self._remote is None or error.code is not ErrorCode.NOT_COORDINATOR:
                raise
        return await self._remote.ask(client, claim, part, adds)

    async def take_part(self, client: TxnClient, claim: Claim, part: Part, adds: bool) -> TxnId:
        """The transaction of a producer that this broker has, with this part, which becomes one if
        `adds`. Raises KafkaError.
        """
        shard, producer = await self._producer(claim)
        if adds:
            topics = [] if part.topic is None else [await self._to_add(part.topic)]
            groups = [_participant(part.group)] if part.topic is None else []
            return await self._with(client, shard, producer, claim, topics, groups, bumps=True)
        producer.require(claim, self._coordinators)
        txn_id = producer.open_transaction(self._coordinators)
        if txn_id is None or not part.is_in(txn_id, self._coordinators):
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"{part} was not added to the transaction"
            )
        return txn_id

    def _at_once(self, producer: LiveProducer, claim: Claim, topic: TopicName) -> TxnId | None:
        """The transaction if it is open and has the topic: nearly always."""
        stored = producer.stored
        if claim.key != stored.key or stored.txn_id is None or producer.is_initialising:
            return None
        transaction = self._coordinators.begun(stored.txn_id)
        if transaction is None or transaction.status is not TxnStatus.OPEN:
            return None
        if self._coordinators.ids.is_fenced(stored.session(producer.id)):
            return None
        if producer.changing.locked():
            return None  # it is being begun, and not durable yet, or being ended
        return stored.txn_id if str(topic) in transaction.partitions else None

    async def _to_add(self, topic: TopicName) -> str:
        """Nothing is refused before this broker has caught up: another one may have just created
        the topic.
        """
        with suppress(PulsarError):
            return partition_to_add(self._topics, TxnId(0, 0), str(topic))
        try:
            await self._topics.ownership.refreshed()
            return partition_to_add(self._topics, TxnId(0, 0), str(topic))
        except PulsarError as error:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, str(error)) from error

    async def commit_offsets(
        self,
        client: TxnClient,
        claim: Claim,
        group_id: str,
        committer: Committer,
        wanted: Mapping[TopicPartition, Wanted],
        adds: bool,
    ) -> Errors:
        """Offsets that are the group's when the transaction commits. With `adds`, the group is
        added to it if necessary: TxnOffsetCommit from version 5 on. Raises KafkaError.
        """
        if len(group_id) > MAX_NAME_CHARS or not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "A group id has 1 to 1024 characters")
        part = Part(None, group_id)
        txn_id = await self._take_part_anywhere(client, claim, part, adds)

        def still_open() -> None:
            if self._remote is not None and not self._remote.is_open(txn_id, part):
                raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"{txn_id} was ended meanwhile")

        return await commit(self._groups, group_id, committer, wanted, txn_id, still_open)

    async def commit_in(
        self,
        txn_id: TxnId,
        principal: str | None,
        group_id: str,
        committer: Committer,
        wanted: Mapping[TopicPartition, Wanted],
    ) -> Errors:
        """Like `commit_offsets`, in a transaction that any client began. Raises KafkaError,
        PulsarError.
        """
        if len(group_id) > MAX_NAME_CHARS or not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "A group id has 1 to 1024 characters")
        coordinator = await self._coordinators.get(txn_id.most)
        await coordinator.add_subscriptions(txn_id, [_participant(group_id)], principal)
        return await commit(self._groups, group_id, committer, wanted, txn_id)

    async def _with(
        self,
        client: TxnClient,
        shard: Shard,
        producer: LiveProducer,
        claim: Claim,
        topics: list[str],
        groups: list[tuple[str, str]],
        bumps: bool,
    ) -> TxnId:
        async with producer.changing:
            producer.require(claim, self._coordinators)
            txn_id = producer.open_transaction(self._coordinators)
            try:
                if txn_id is None:
                    coordinator = await self._coordinator_for(claim.id)
                    txn_id, added = self._begin(client, shard, producer, coordinator, bumps)
                else:
                    coordinator = await self._coordinators.get(txn_id.most)
                    added = []
                if topics:
                    added.append(coordinator.add_partitions(txn_id, topics, client.principal))
                if groups:
                    added.append(coordinator.add_subscriptions(txn_id, groups, client.principal))
                await asyncio.gather(*added)
            except TooManyRequests as error:
                await asyncio.sleep(_FULL_WAIT_S)
                raise KafkaError(_AGAIN, str(error)) from error
            except TransactionCoordinatorNotFound as error:
                raise loading(str(error)) from error
            except InvalidTxnStatus as error:
                raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, str(error)) from error
            except PulsarError as error:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE, str(error)) from error
            await shard.durable(producer.id)
            return txn_id

    async def _coordinator_for(self, id: TransactionalId) -> TransactionCoordinator:
        """Raises TransactionCoordinatorNotFound if another broker serves it."""
        return await self._coordinators.get(number_of(id.name) % self._coordinators.count)

    def _begin(
        self,
        client: TxnClient,
        shard: Shard,
        producer: LiveProducer,
        coordinator: TransactionCoordinator,
        bumps: bool,
    ) -> tuple[TxnId, list[asyncio.Future[TxnId]]]:
        """Raises TooManyRequests, NotAllowed, and the errors of `new_transaction`."""
        self._require_share(client)
        stored, coordinators = producer.stored, self._coordinators
        if stored.timeout_ms is None:
            coordinator.preparing.require_room(client.owner, self._most_prepared(client))
        session = stored.session(producer.id)
        self._abort_untold(coordinator, session)
        beginning = coordinator.new_transaction(
            stored.timeout_ms,
            client.owner,
            exempt=client.owner is not None and client.principal is None,
            session=session,
            client=(client.peer, client.version),
        )
        txn_id = TxnId(coordinator.coordinator_id, coordinator.highest_id)
        assert coordinators.begun(txn_id) is not None
        begun = replace(stored, txn_id=txn_id, bumps=bumps)
        store(shard, producer, begun)
        return txn_id, [beginning]

    def _abort_untold(self, coordinator: TransactionCoordinator, session: SessionRef) -> None:
        """Abort a transaction that a crash kept from being answered: nobody knows of it."""
        for transaction in coordinator.bound_to(session.id):
            if transaction.session == session and transaction.status is TxnStatus.OPEN:
                coordinator.abort(transaction.txn_id, why_fenced(session), DecidedBy.FENCING)

    def _require_share(self, client: TxnClient) -> None:
        """Raises TooManyRequests if the principal has as many active transactions as it may."""
        most = self._limits.max_live_of_principal
        if most and client.principal and self._coordinators.live_of(client.principal) >= most:
            raise TooManyRequests(
                f"{client.principal} has {most} active transactions "
                "(maxActiveTransactionsPerPrincipal): end some, then retry"
            )

    async def end(
        self, client: TxnClient, claim: Claim, action: TxnAction, bumps: bool
    ) -> ProducerKey:
        """Commit or abort; all participants have followed when this returns. The result is the
        producer's next id and epoch; with `bumps` the epoch has risen. Idempotent. Raises
        KafkaError.
        """
        shard, producer = await self._producer(claim)
        async with producer.changing:
            return await self._ends.end(client, shard, producer, claim, action, bumps)


def _require_coordinators(coordinators: Coordinators) -> None:
    """In a cluster, a log of producers is where the coordinator of its number is. Raises
    KafkaError.
    """
    if coordinators.are_shared and coordinators.count < COUNT:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Kafka's transactions need {COUNT} transaction coordinators in a cluster, and there "
            f"are {coordinators.count}: pybroker admin transactions "
            f"scale-transactionCoordinators --replicas {COUNT}",
        )


def _participant(group_id: str) -> tuple[str, str]:
    return str(topic_of_group(group_id)), group_id
