"""Nobody learns of groups and producers what is not durable: requests that would tell it fail."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from kafka_produce import TOPIC, create
from kafka_words import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    TxnProducer,
    add_partition,
    inited,
)
from raw_kafka import RawKafka

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import InvalidTxnStatus
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.offsets.log import OffsetsLog
from pybroker.testing import RunningBroker, broker
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator

JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, OFFSET_DELETE = 11, 12, 13, 14, 47
DELETE_GROUPS, BEAT, SHARE_BEAT = 42, 68, 76
NOT_AVAILABLE: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        yield started


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        create(connected)
        yield connected


@pytest.fixture
def not_durable(monkeypatch: pytest.MonkeyPatch) -> Any:
    async def fails(log: OffsetsLog, key: object) -> None:
        raise ManagedLedgerError("the disk is full")

    return lambda: monkeypatch.setattr(OffsetsLog, "durable", fails)


def codes(found: Any) -> set[int]:
    """All error codes of a response that are not NONE."""
    if isinstance(found, list):
        return set().union(*map(codes, found))
    if not isinstance(found, dict):
        return set()
    own = {each for name, each in found.items() if name.endswith("error_code")}
    return (own | set().union(*map(codes, found.values()))) - {ErrorCode.NONE}


def commit_body(group: str, member_id: str = "", generation: int = -1) -> dict[str, Any]:
    place = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    return {
        "group_id": group,
        "member_id": member_id,
        "generation_id_or_member_epoch": generation,
        "topics": [{"name": TOPIC, "partitions": [place]}],
    }


def join_body(group: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


def test_offsets_are_not_told(raw: RawKafka, not_durable: Any) -> None:
    assert codes(raw.ask(OFFSET_COMMIT, 7, commit_body("stored"))) == set()
    not_durable()
    topics = [{"name": TOPIC, "partition_indexes": [0]}]
    gone = [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]
    asked = [
        (OFFSET_COMMIT, 7, commit_body("new")),
        (OFFSET_COMMIT, 7, commit_body("stored", "nobody", 3)),
        (OFFSET_FETCH, 7, {"group_id": "stored", "topics": topics}),
        (OFFSET_DELETE, 0, {"group_id": "stored", "topics": gone}),
        (DELETE_GROUPS, 1, {"groups_names": ["new"]}),
    ]
    for each in asked:
        assert codes(raw.ask(*each)) == {NOT_AVAILABLE}, each


def test_members_are_not_told(raw: RawKafka, not_durable: Any) -> None:
    """They would act as what the broker has forgotten after a crash."""
    joined = {each: raw.ask(JOIN_GROUP, 3, join_body(each)) for each in ("a", "b")}
    who = {
        group: {
            "group_id": group,
            "member_id": each["member_id"],
            "generation_id": each["generation_id"],
        }
        for group, each in joined.items()
    }
    beat = {"member_epoch": 0, "subscribed_topic_names": [TOPIC]}
    own = {"rebalance_timeout_ms": 60_000, "topic_partitions": []}
    assert codes(raw.ask(BEAT, 1, {"group_id": "c", "member_id": "m"} | beat | own)) == set()
    assigned = [{"member_id": joined["a"]["member_id"], "assignment": b"x"}]
    not_durable()
    asked: list[tuple[int, int, dict[str, Any]]] = [
        (SYNC_GROUP, 3, who["a"] | {"assignments": assigned}),
        (HEARTBEAT, 3, who["a"]),
        (LEAVE_GROUP, 2, who["b"]),
        (LEAVE_GROUP, 5, {"group_id": "c", "members": [{"member_id": "m"}]}),
        (JOIN_GROUP, 3, join_body("d")),
        (BEAT, 1, {"group_id": "e", "member_id": "m"} | beat | own),
        (SHARE_BEAT, 1, {"group_id": "f", "member_id": "m"} | beat),
    ]
    for each in asked:
        assert codes(raw.ask(*each)) == {NOT_AVAILABLE}, each


def test_producers_are_not_told(raw: RawKafka, not_durable: Any) -> None:
    names = ("known", "begun", "idle", "commits", "aborts")
    known, begun, idle, commits, aborts = (inited(raw, each) for each in names)
    for each in (begun, commits, aborts):
        add_partition(raw, each)

    def fields(producer: TxnProducer) -> dict[str, Any]:
        return {f"v3_and_below_{name}": each for name, each in producer.fields.items()}

    not_durable()
    topics = {"v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}]}
    asked: list[tuple[int, int, dict[str, Any]]] = [
        (INIT_PRODUCER_ID, 4, {"transactional_id": "new", "transaction_timeout_ms": 60_000}),
        (ADD_PARTITIONS, 3, fields(known) | topics),
        (ADD_OFFSETS, 3, {**begun.fields, "group_id": "g"}),
        (END_TXN, 5, {**idle.fields, "committed": False}),
        (END_TXN, 3, {**aborts.fields, "committed": False}),
    ]
    for request in asked:
        assert codes(raw.ask(*request)) == {NOT_AVAILABLE}, request
    # After a crash the coordinator of transactions tells of the commit.
    assert codes(raw.ask(END_TXN, 3, {**commits.fields, "committed": True})) == set()


def test_a_log_that_has_failed_is_closed_and_read_again(
    running: RunningBroker, raw: RawKafka
) -> None:
    assert codes(raw.ask(OFFSET_COMMIT, 7, commit_body("failed"))) == set()

    async def fail(started: Any) -> OffsetsLog:
        shard = await started._kafka.services.groups.shard_of("failed")
        log: OffsetsLog = shard.log
        log._fail(ManagedLedgerError("the disk is full"))
        return log

    async def present(started: Any) -> OffsetsLog:
        log: OffsetsLog = (await started._kafka.services.groups.shard_of("failed")).log
        return log

    failed = running.call(fail)
    running.wait_until(lambda: failed._closed)
    assert running.call(present) is not failed
    asked = {"group_id": "failed", "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    (topic,) = raw.ask(OFFSET_FETCH, 7, asked)["topics"]
    assert topic["partitions"][0]["committed_offset"] == 1


def test_a_listener_that_stops_looks_at_no_connection_any_more() -> None:
    with broker(kafka=True) as started:

        async def stop(found: Any) -> Any:
            before = found._kafka._checking
            await found._kafka.stop_listening()
            return before, found._kafka._checking

        before, after = started.call(stop)
        assert before.cancelled() and after is None


def test_what_cannot_be_added_to_a_transaction_is_not_told_as_added(
    raw: RawKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was ended, by its timeout for instance, while its producer was asking."""
    producer = inited(raw, "late")

    def refuses(*_: object) -> None:
        raise InvalidTxnStatus("it is being aborted")

    monkeypatch.setattr(TransactionCoordinator, "add_partitions", refuses)
    assert add_partition(raw, producer) is ErrorCode.INVALID_PRODUCER_EPOCH
