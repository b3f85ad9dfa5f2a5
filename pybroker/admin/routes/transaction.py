"""Transactions: coordinators, single transactions, their participants."""

import asyncio
from contextlib import suppress
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from managed_ledger.position import Position
from pybroker.admin.finding import existing
from pybroker.admin.http.permitted import check_owner
from pybroker.admin.operation import Body, DescribedRoute, flags
from pybroker.admin.routing import asked, flag, number, read_json, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes import transactions as shapes
from pybroker.admin.stats.ledger import log_stats
from pybroker.base.errors import (
    NotAllowed,
    PersistenceError,
    ServiceNotReady,
    SubscriptionNotFound,
    TransactionNotFound,
)
from pybroker.base.json_schema import COUNT, TEXT, WHOLE, any_of, whole
from pybroker.base.names import COORDINATOR_ASSIGN, TxnId, pending_ack_log
from pybroker.base.runtime import Pace
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.logs import audit
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.ends.participants import Retry
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.coordinator.log.transaction_log import log_name
from pybroker.transaction.pending_acks.stats import PendingAckStats
from pybroker.transaction.txn_status import UNDECIDED, TxnStatus

_BASE: Final = "/admin/v3/transactions"
_DESCRIBED_A_TURN: Final = 50
_TOPIC: Final = "{tenant:segment}/{namespace:segment}/{topic:form}"
_TXN: Final = "{most:int}/{least:int}"

_MOST_REASON_CHARS: Final = 200
_REASON: Final = {**TEXT, "maxLength": _MOST_REASON_CHARS}
_TOPICS_NAMED: Final = 3

Stats = dict[str, Any]


class TransactionRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services
        self._topics = services.topics
        self._coordinators = services.coordinators
        self._raising = asyncio.Lock()

    def routes(self) -> list[DescribedRoute]:
        subscription = _TOPIC + "/{subscription:segment}"
        of_coordinator = {"coordinatorId": COUNT}
        stats = any_of(shapes.COORDINATOR, shapes.COORDINATORS_STATS)
        return [
            route("GET", f"{_BASE}/coordinators", self.coordinators, shapes.COORDINATORS),
            route(
                "POST",
                f"{_BASE}/transactionCoordinator/replicas",
                self.raise_count,
                body=Body(WHOLE, misfit=406),
                refuses=(406,),
            ),
            route(
                "GET",
                f"{_BASE}/coordinatorStats",
                self.coordinator_stats,
                stats,
                query=of_coordinator,
                refuses=(404,),
            ),
            route(
                "GET",
                f"{_BASE}/coordinatorInternalStats/{{most:int}}",
                self.coordinator_log,
                shapes.COORDINATOR_INTERNAL,
                query=flags("metadata"),
            ),
            route(
                "GET",
                f"{_BASE}/slowTransactions/{{timeout_ms:int}}",
                self.slow,
                shapes.SLOW,
                query=of_coordinator,
            ),
            route("GET", f"{_BASE}/transactionMetadata/{_TXN}", self.metadata, shapes.METADATA),
            route(
                "GET",
                f"{_BASE}/transactionBufferStats/{_TOPIC}",
                self.buffer_stats,
                shapes.BUFFER,
                query=flags("lowWaterMarks", "segmentStats"),
            ),
            route(
                "GET",
                f"{_BASE}/transactionBufferInternalStats/{_TOPIC}",
                self.buffer_internal,
                shapes.BUFFER_INTERNAL,
                query=flags("metadata"),
            ),
            route(
                "GET",
                f"{_BASE}/transactionInBufferStats/{_TOPIC}/{_TXN}",
                self.in_buffer,
                shapes.IN_BUFFER,
            ),
            route(
                "GET",
                f"{_BASE}/pendingAckStats/{subscription}",
                self.pending_ack_stats,
                shapes.PENDING_ACK,
                query=flags("lowWaterMarks"),
            ),
            route(
                "GET",
                f"{_BASE}/pendingAckInternalStats/{subscription}",
                self.pending_ack_log,
                shapes.PENDING_ACK_INTERNAL,
                query=flags("metadata"),
            ),
            route(
                "GET",
                f"{_BASE}/positionStatsInPendingAck/{subscription}/{{ledger:int}}/{{entry:int}}",
                self.position_in_pending_ack,
                shapes.IN_PENDING_ACK_STATE,
                query={"batchIndex": whole(-1, 2**31 - 1)},
            ),
            route(
                "GET",
                f"{_BASE}/transactionInPendingAckStats/{subscription}/{_TXN}",
                self.in_pending_ack,
                shapes.IN_PENDING_ACK,
            ),
            route(
                "POST",
                f"{_BASE}/abortTransaction/{_TXN}",
                self.abort,
                query={"reason": _REASON},
                refuses=(409,),
            ),
        ]

    # -- coordinators

    async def coordinators(self, _: Request) -> list[Stats]:
        url = self._services.service_url
        count = self._coordinators.count
        return [{"id": number, "brokerServiceUrl": url} for number in range(count)]

    async def raise_count(self, request: Request) -> None:
        """Raises the number of coordinators to the number in the body. It is durable, and visible
        to clients, when this is answered.
        """
        count = await read_json(request)
        most = self._services.config.max_num_partitions_per_partitioned_topic
        async with self._raising:
            now = self._coordinators.count
            if not now <= count <= most:
                raise HTTPException(
                    406, f"There are {now} coordinators; the number can only grow, up to {most}"
                )
            await self._topics.tenants.set_partitions(COORDINATOR_ASSIGN, count)
            self._coordinators.count = count

    async def coordinator_stats(self, request: Request) -> Stats:
        """Stats of one coordinator with ?coordinatorId=N, else of all in use, by id."""
        chosen = await self._chosen(request)
        stats = {str(c.coordinator_id): _coordinator_stats(c) for c in chosen}
        return next(iter(stats.values())) if asked(request, "coordinatorId") is not None else stats

    async def coordinator_log(self, request: Request) -> Stats:
        coordinator = await self._coordinator(request.path_params["most"])
        return {"transactionLogStats": self._log(log_name(coordinator.coordinator_id))}

    def _log(self, name: str) -> Stats:
        ledger = self._services.ledgers.opened(name)
        if ledger is None:
            raise ServiceNotReady(f"{name} is being opened: try again")
        return log_stats(ledger)

    async def slow(self, request: Request) -> Stats:
        """Transactions that have been open for at least that many milliseconds, by id."""
        latest_ms = self._services.clock.now_ms() - request.path_params["timeout_ms"]
        found: Stats = {}
        pace = Pace(_DESCRIBED_A_TURN)
        for coordinator in await self._chosen(request):
            for transaction in coordinator.live():
                if transaction.status is TxnStatus.OPEN and transaction.opened_at_ms <= latest_ms:
                    found[str(transaction.txn_id)] = await self._described(transaction, pace)
                    await pace.step()
        return found

    async def metadata(self, request: Request) -> Stats:
        txn_id = _txn_id(request)
        coordinator = await self._coordinator(txn_id.most)
        transaction = coordinator.metadata(txn_id)
        check_owner(
            self._services.authorizer, request, None if transaction is None else transaction.owner
        )
        if transaction is not None:
            return await self._described(transaction, Pace(_DESCRIBED_A_TURN))
        status = coordinator.status(txn_id)
        if status is None:
            raise TransactionNotFound(f"Transaction {txn_id} does not exist or ended long ago")
        reason = coordinator.why_aborted(txn_id)
        because = {"abortReason": reason} if reason else {}
        return {"txnId": str(txn_id), "status": status.name, **because}

    async def abort(self, request: Request) -> None:
        """Aborts a transaction. The owner gets the ?reason= when it commits, and the audit log has
        it. Succeeds if the transaction is already aborted.
        """
        txn_id, said = _txn_id(request), _reason(request)
        coordinator = await self._coordinator(txn_id.most)
        found = coordinator.metadata(txn_id)
        is_open = found is not None and found.status in UNDECIDED
        aborted = coordinator.abort(txn_id, f"an administrator aborted it: {said}")
        if found is not None and is_open:
            audit.done("abort transaction", _named(found), why=said)
        await aborted

    async def _chosen(self, request: Request) -> list[TransactionCoordinator]:
        if asked(request, "coordinatorId") is None:
            return self._coordinators.served()
        return [await self._coordinator(number(request, "coordinatorId", default=0))]

    async def _coordinator(self, number: int) -> TransactionCoordinator:
        if not 0 <= number < self._coordinators.count:
            raise HTTPException(404, f"There is no transaction coordinator {number}")
        return await self._coordinators.get(number)

    async def _described(self, transaction: TransactionMetadata, pace: Pace) -> Stats:
        acked: dict[str, Stats] = {}
        for topic, subscription in list(transaction.subscriptions):
            found = await self._acked(topic, subscription, transaction.txn_id)
            acked.setdefault(topic, {})[subscription] = found
            await pace.step()
        produced: dict[str, Stats] = {}
        for topic in list(transaction.partitions):
            produced[topic] = await self._produced(topic, transaction.txn_id)
            await pace.step()
        return {
            "txnId": str(transaction.txn_id),
            "status": transaction.status.name,
            "openTimestamp": transaction.opened_at_ms,
            "timeoutAt": transaction.timeout_ms,
            "owner": transaction.owner,
            "producedPartitions": produced,
            "ackedPartitions": acked,
        }

    async def _produced(self, topic: str, txn_id: TxnId) -> Stats:
        """Without a position if the topic cannot be loaded, so that the others are still shown."""
        loaded = None
        with suppress(PersistenceError, ServiceNotReady):
            loaded = await self._topics.get(topic)
        return {"startPosition": None, "aborted": False} if loaded is None else _in(loaded, txn_id)

    async def _acked(self, topic: str, subscription: str, txn_id: TxnId) -> Stats:
        """Without a position if the subscription's state is unknown, so that the others are still
        shown; or if it is a Kafka group, whose offsets are in a log.
        """
        pending = None
        with suppress(PersistenceError, ServiceNotReady, NotAllowed):
            loaded = await self._topics.get(topic)
            if loaded is not None and subscription in loaded.subscriptions:
                pending = await loaded.subscriptions[subscription].replayed()
        return _in_pending_acks(None if pending is None else pending.stats_of(txn_id))

    # -- participants

    async def buffer_stats(self, request: Request) -> Stats:
        topic = await self._topic(request)
        times = topic.buffer.times
        return {
            "state": "Ready",
            "maxReadPosition": str(topic.max_read_position),
            "ongoingTxnSize": topic.buffer.open_count,
            "totalAbortedTransactions": topic.aborted,
            "snapshotType": "Single",
            "lastSnapshotTimestamps": times.snapshot,
            "recoverStartTime": times.recovery_began,
            "recoverEndTime": times.recovered,
            "lowWaterMarks": self._low_water_marks(request),
            "segmentsStats": None,
        }

    def _low_water_marks(self, request: Request) -> dict[str, int] | None:
        """Low-water marks by coordinator; None if not requested."""
        if not flag(request, "lowWaterMarks"):
            return None
        return {str(c.coordinator_id): c.stats().low_watermark for c in self._coordinators.served()}

    async def buffer_internal(self, request: Request) -> Stats:
        """Differs: snapshots are records in the metadata store, not a topic of the namespace."""
        await self._topic(request)
        return {
            "snapshotType": "Single",
            "singleSnapshotSystemTopicInternalStats": None,
            "segmentInternalStats": None,
            "segmentIndexInternalStats": None,
        }

    async def in_buffer(self, request: Request) -> Stats:
        return _in(await self._topic(request), _txn_id(request))

    async def pending_ack_stats(self, request: Request) -> Stats:
        pending = (await self._subscription(request)).pending_acks
        if pending is None:
            return self._pending_acks(request, "None", 0)
        return self._pending_acks(request, "Ready", len(pending.stats()))

    def _pending_acks(self, request: Request, state: str, open_count: int) -> Stats:
        """Recovery times are not recorded."""
        return {
            "state": state,
            "ongoingTxnSize": open_count,
            "lowWaterMarks": self._low_water_marks(request),
            "recoverStartTime": 0,
            "recoverEndTime": 0,
        }

    async def pending_ack_log(self, request: Request) -> Stats:
        subscription = await self._subscription(request)
        if subscription.pending_acks is None:
            raise TransactionNotFound(f"{subscription} has never taken part in a transaction")
        name = pending_ack_log(topic_of(request), subscription.name)
        return {"pendingAckLogStats": self._log(name)}

    async def position_in_pending_ack(self, request: Request) -> Stats:
        """Whether a transaction holds the acknowledgement of a message; ?batchIndex=N selects one
        message of a batch.
        """
        topic, subscription = await self._topic(request), await self._subscription(request)
        position = Position(request.path_params["ledger"], request.path_params["entry"])
        index = number(request, "batchIndex", default=-1)
        return {"state": _state_of(topic, subscription, position, index)}

    async def in_pending_ack(self, request: Request) -> Stats:
        txn_id = _txn_id(request)
        pending = (await self._subscription(request)).pending_acks
        stats = None if pending is None else pending.stats_of(txn_id)
        if stats is not None:
            return _in_pending_acks(stats)
        raise TransactionNotFound(f"Transaction {txn_id} has acknowledged nothing here")

    async def _subscription(self, request: Request) -> Subscription:
        topic = await self._topic(request)
        name = request.path_params["subscription"]
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"{topic.name} has no subscription {name}")
        return subscription

    async def _topic(self, request: Request) -> Topic:
        return await existing(self._topics, topic_of(request))


def _state_of(topic: Topic, subscription: Subscription, position: Position, index: int) -> str:
    """The state of an acknowledgement, as Apache Pulsar's PositionInPendingAckStats.State."""
    pending, cursor = subscription.pending_acks, subscription.cursor
    if cursor.is_deleted(position):
        return "MarkDelete"
    if not topic.ledger.has_entry(position):
        return "InvalidPosition"
    if pending is None:
        return "NotInPendingAck"
    cumulative = pending.cumulative_position
    if pending.is_pending(*position) or (cumulative is not None and position <= cumulative):
        return "PendingAck"
    indexes = pending.pending_indexes(position)
    is_held = 0 <= index < indexes.bit_length() and indexes >> index & 1
    return "PendingAck" if is_held else "NotInPendingAck"


def _in_pending_acks(stats: PendingAckStats | None) -> Stats:
    position = None if stats is None else stats.cumulative_position
    return {"cumulativeAckPosition": None if position is None else str(position)}


def _txn_id(request: Request) -> TxnId:
    return TxnId(request.path_params["most"], request.path_params["least"])


def _reason(request: Request) -> str:
    said = " ".join((asked(request, "reason") or "").split())
    if len(said) > _MOST_REASON_CHARS:
        raise HTTPException(400, f"A reason may have at most {_MOST_REASON_CHARS} characters")
    return said or "no reason given"


def _named(transaction: TransactionMetadata) -> str:
    """A transaction in the audit log: its id, owner and topics."""
    topics = [*transaction.partitions, *(topic for topic, _ in transaction.subscriptions)]
    topics = list(dict.fromkeys(topics))
    more = len(topics) - _TOPICS_NAMED
    named = " ".join(topics[:_TOPICS_NAMED]) + (f" and {more:,} more" if more > 0 else "")
    return f"{transaction.txn_id} of {transaction.owner or 'nobody'}: {named or 'nothing yet'}"


def _coordinator_stats(coordinator: TransactionCoordinator) -> Stats:
    stats = coordinator.stats()
    return {
        "state": "Ready",
        "lowWaterMark": stats.low_watermark,
        "leastSigBits": stats.highest_id,
        "ongoingTxnSize": stats.active,
        "recoverStartTime": coordinator.recovered_ms[0],
        "recoverEndTime": coordinator.recovered_ms[1],
        "createdCount": stats.opened,
        "committedCount": stats.committed,
        "abortedCount": stats.aborted,
        "timeoutCount": stats.timed_out,
        "retries": [_retry(retry) for retry in stats.retries],
        "givenUp": [_retry(retry) for retry in stats.given_up],
    }


def _retry(retry: Retry) -> Stats:
    return {
        "txnId": str(retry.txn_id),
        "participant": str(retry.participant),
        "topic": retry.participant.topic,
        "subscription": retry.participant.subscription,
        "attempts": retry.attempts,
        "lastError": retry.last_error,
    }


def _in(topic: Topic, txn_id: TxnId) -> Stats:
    position = topic.buffer.first_position_of(txn_id)
    return {"startPosition": None if position is None else str(position), "aborted": False}
