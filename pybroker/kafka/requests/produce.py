"""Produce: one RecordBatch for each partition, answered when all of them are durable.

- 3: message format 2, with a transactional id.
- 7: zstd; 8: which record of a batch is wrong.
- 10: the new leader of a partition (KIP-951) is left out: clients believe only a later epoch, and
  epochs do not change here. 11: TRANSACTION_ABORTABLE.
- 12: the first batch for a partition adds it to the transaction (KIP-890, second part).
- 13: topics by their ids (KIP-516).

acks=1 and acks=all are the same here, a receipt follows the fsync; with acks=0 there is no
response. The batches of a request are appended in its order before the next request begins.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import (
    IncompatibleSchema,
    MetadataError,
    PersistenceError,
    ProducerBusy,
    ProducerFenced,
    PulsarError,
)
from pybroker.base.names import TxnId
from pybroker.broker.policies.throttle import Throttle
from pybroker.kafka.errors import ErrorCode, KafkaError, error_code, error_message
from pybroker.kafka.log.partition_log import PartitionLog
from pybroker.kafka.pacing import paced
from pybroker.kafka.partition_logs import partition_log_of
from pybroker.kafka.permissions import Operation
from pybroker.kafka.producers.errors import ProducerRefused
from pybroker.kafka.producers.refused import Place, RefusedBatches
from pybroker.kafka.records.batch import BatchHeader, checked_from_client
from pybroker.kafka.records.errors import BadRecords, TooManyBytes
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.topics import learn_ids
from pybroker.kafka.transactions.requesting import claim_of, client_of

_ACKS: Final = (-1, 0, 1)
_ABORTABLE: Final = 11  # the first version that knows TRANSACTION_ABORTABLE
_ADDS_PARTITIONS: Final = 12
_FIRST_WITH_IDS: Final = 13
_CONCURRENT: Final = ErrorCode.CONCURRENT_TRANSACTIONS
_AGAIN: Final = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)
_MOST_WAIT_S: Final = 60.0  # for the receipts of one request
_MOST_HELD_S: Final = 30.0  # by the publish rate
# After these a client sends the batch again, as it was.
_SENT_AGAIN: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    )
)
_REFUSED: Final = "refused"  # the name in Session.kept
_REFUSALS: Final = (KafkaError, PulsarError, ManagedLedgerError, BadRecords, ProducerRefused)
# Another access mode, encryption or a schema is wanted: PRODUCER_FENCED would mean something else.
_BY_POLICY: Final = (ProducerBusy, ProducerFenced, MetadataError, IncompatibleSchema)
Body = Mapping[str, Any]


class _Outcome:
    """The responses of the partitions, which come in any order."""

    def __init__(self) -> None:
        self.responses: list[dict[str, Any]] = []  # by topic
        self.whole: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        self._open = 1  # partitions without an outcome, and the request itself until all have begun

    def begin(self, responses: list[dict[str, Any]], index: int) -> dict[str, Any]:
        response = {
            "index": index,
            "error_code": ErrorCode.REQUEST_TIMED_OUT,
            "base_offset": -1,
            "log_append_time_ms": -1,
            "log_start_offset": -1,
        }
        responses.append(response)
        self._open += 1
        return response

    def answer(self, response: dict[str, Any], offset: int | None, error: Exception | None) -> None:
        if self.whole.done():
            return  # too late
        if offset is None:
            response["error_code"] = code_of(error)
            response["error_message"] = _message_of(error)
        else:
            response["error_code"], response["base_offset"] = ErrorCode.NONE, offset
        self.one_less()

    def one_less(self) -> None:
        self._open -= 1
        if not self._open:
            self.give_up()

    def give_up(self) -> None:
        """Partitions without an outcome are answered as timed out."""
        if not self.whole.done():
            self.whole.set_result({"responses": self.responses})


async def handle(
    services: KafkaServices, session: Session, request: Request
) -> asyncio.Future[Body] | asyncio.Future[None] | None:
    outcome, acks = _Outcome(), request["acks"]
    beginning = _begin(services, session, request, outcome)
    if acks == 0:  # the client may close its connection behind the request
        await asyncio.shield(services.tasks.start(beginning, "a Produce without acknowledgement"))
        return None
    await beginning
    _limit(outcome, request["timeout_ms"])
    return outcome.whole


async def _begin(
    services: KafkaServices, session: Session, request: Request, outcome: _Outcome
) -> None:
    if request.version >= _FIRST_WITH_IDS:
        await learn_ids(services, [each["topic_id"] for each in request["topic_data"]])
    async for topic in paced(request["topic_data"]):
        partitions: list[dict[str, Any]] = []
        topic_id = topic["topic_id"]
        outcome.responses.append(
            {"name": topic["name"], "topic_id": topic_id, "partition_responses": partitions}
        )
        name = topic["name"]
        if request.version >= _FIRST_WITH_IDS:
            name = services.topic_ids.name_of(topic_id)
        async for asked in paced(topic["partition_data"]):
            response = outcome.begin(partitions, asked["index"])
            try:
                if request["acks"] not in _ACKS:
                    raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, "acks is 0, 1 or all")
                if name is None:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
                await _append(services, session, request, name, asked, outcome, response)
            except _REFUSALS as error:
                place = name or str(topic_id), asked["index"]
                _note_refusal(session, place, asked["records"], error)
                outcome.answer(response, None, error)
    outcome.one_less()


def _note_refusal(
    session: Session, place: Place, batch: bytes | None, error: Exception | None
) -> None:
    if error is not None and code_of(error) in _SENT_AGAIN:
        refused: RefusedBatches = session.kept.setdefault(_REFUSED, RefusedBatches())
        refused.add(place, batch or b"")


def _limit(outcome: _Outcome, timeout_ms: int) -> None:
    if not outcome.whole.done():
        wait_s = min(max(timeout_ms, 0) / 1000, _MOST_WAIT_S)
        timer = asyncio.get_running_loop().call_later(wait_s, outcome.give_up)
        outcome.whole.add_done_callback(lambda _: timer.cancel())


async def _append(
    services: KafkaServices,
    session: Session,
    request: Request,
    topic: str,
    asked: Body,
    outcome: _Outcome,
    response: dict[str, Any],
) -> None:
    """Raises one of _REFUSALS."""
    log = await partition_log_of(services, session, topic, asked["index"], Operation.WRITE)
    batch = asked["records"] or b""
    header = checked_batch(batch, services.config.max_message_size)
    txn_id = None
    if request["transactional_id"] is not None or header.is_transactional:
        txn_id = await _transaction(services, session, request, log, header)
    producers = await log.producers() if header.producer_id >= 0 else None
    place = topic, asked["index"]
    refused: RefusedBatches | None = session.kept.get(_REFUSED)
    if refused is not None and producers is not None and producers.get(header.producer_id) is None:
        refused.check_beginning(place, header)

    def answer(offset: int | None, error: Exception | None) -> None:
        _note_refusal(session, place, batch, error)
        outcome.answer(response, offset, error)

    producer = log.publisher.admitted
    if producer is None:
        # What may not be written now may have been stored before.
        told_ms = None if producers is None else log.answered(header, producers, answer)
        if told_ms is not None:
            response["log_append_time_ms"] = told_ms
            return
        services.topics.schemas.check_without(log.topic.name)
        producer = await log.publisher.join()
    if log.topic.gate is not None and log.topic.gate.rate is not None:
        await _pass_rate(log, log.topic.gate.rate, batch, header)

    appended_ms = log.append(batch, header, producer, producers, answer, txn_id)
    response["log_append_time_ms"] = appended_ms
    if refused is not None:
        refused.stored(place, header)


async def _transaction(
    services: KafkaServices,
    session: Session,
    request: Request,
    log: PartitionLog,
    header: BatchHeader,
) -> TxnId:
    """Raises KafkaError. From version 12 on the partition becomes part of it (KIP-890)."""
    name = request["transactional_id"]
    if name is None or not header.is_transactional:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            "A transactional batch needs the transactional.id of its producer, and the reverse",
        )
    if log.topic.buffer.in_commit_order:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{log.topic.name} keeps transactions aside until they commit (transactionBuffer), so "
            "that their offsets are not known before: Kafka's transactions need log order",
        )
    claim = claim_of(session, name, header.producer_id, header.producer_epoch)
    adds = request.version >= _ADDS_PARTITIONS
    try:
        client = client_of(services, session)
        return await services.transactions.to_publish(client, claim, log.topic.name, adds)
    except KafkaError as error:
        raise KafkaError(_code_for(request, error.code), str(error)) from error


def _code_for(request: Request, code: ErrorCode) -> ErrorCode:
    """Clients abort after INVALID_PRODUCER_EPOCH; InitProducerId then says who is fenced. They
    do not expect the errors of coordinators here, and repeat a batch after NOT_ENOUGH_REPLICAS.
    """
    if code in _AGAIN or (code is _CONCURRENT and request.version < _ADDS_PARTITIONS):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    abortable = code is ErrorCode.TRANSACTION_ABORTABLE and request.version < _ABORTABLE
    if code is ErrorCode.PRODUCER_FENCED or abortable:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def checked_batch(batch: bytes, most_bytes: int) -> BatchHeader:
    """Raises TooManyBytes above `most_bytes`, and the BadRecords of `checked_from_client`."""
    if len(batch) > most_bytes:
        raise TooManyBytes(
            f"A batch of {len(batch)} bytes: the broker stores at most {most_bytes} "
            "(maxMessageSize); lower batch.size or max.request.size"
        )
    return checked_from_client(batch)


async def _pass_rate(log: PartitionLog, rate: Throttle, batch: bytes, header: BatchHeader) -> None:
    """Waits while the publish rate is exceeded: the client's next request waits, too."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _MOST_HELD_S
    while not rate.take((batch,), (header.record_count,)):
        if loop.time() > until_s:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{log.topic.name} exceeds its publish rate"
            )
        await asyncio.sleep(rate.wait_s())


def code_of(error: Exception | None) -> int:
    if isinstance(error, BadRecords | ProducerRefused):
        return error.code
    if isinstance(error, _BY_POLICY):
        return ErrorCode.POLICY_VIOLATION
    if isinstance(error, PersistenceError):
        return ErrorCode.KAFKA_STORAGE_ERROR  # the client sends it again
    return ErrorCode.UNKNOWN_SERVER_ERROR if error is None else error_code(error)


def _message_of(error: Exception | None) -> str | None:
    if isinstance(error, BadRecords | ProducerRefused):
        return str(error)
    return None if error is None else error_message(error)
