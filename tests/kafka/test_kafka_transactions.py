"""Transactions of Kafka's producers, request by request: epochs, fencing, offsets, crashes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_produce import create
from kafka_words import (
    END_TXN,
    INIT_PRODUCER_ID,
    TxnProducer,
    add_group,
    add_partition,
    commit_in_txn,
    end,
    init,
    inited,
    offset_of,
)
from raw_kafka import RawKafka

from pybroker.base.errors import ProducerFenced
from pybroker.client import Client, InvalidTxnStatus
from pybroker.kafka.errors import ErrorCode
from pybroker.process.kafka_sessions import KafkaSessions
from pybroker.testing import RunningBroker, broker

NONE = ErrorCode.NONE
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        with RawKafka(started.kafka_bootstrap) as raw:
            create(raw)
        yield started


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


def begun(raw: RawKafka, name: str, group: str, offset: int) -> TxnProducer:
    """A producer in a transaction that commits an offset."""
    producer = inited(raw, name)
    assert add_partition(raw, producer) is NONE
    assert add_group(raw, producer, group) is NONE
    assert commit_in_txn(raw, producer, group, offset) is NONE
    return producer


def test_offsets_are_the_groups_when_the_transaction_commits(raw: RawKafka) -> None:
    producer = begun(raw, "commits", "g-commits", 5)
    assert offset_of(raw, "g-commits") == -1
    assert offset_of(raw, "g-commits", stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert end(raw, producer) is NONE
    assert offset_of(raw, "g-commits", stable=True) == 5


def test_offsets_of_an_aborted_transaction_are_forgotten(raw: RawKafka) -> None:
    producer = begun(raw, "aborts", "g-aborts", 5)
    assert end(raw, producer, committed=False) is NONE
    assert offset_of(raw, "g-aborts", stable=True) == -1


def test_a_producer_goes_on_with_its_next_transaction(raw: RawKafka) -> None:
    producer = inited(raw, "many")
    for offset in range(5):
        assert add_group(raw, producer, "g-many") is NONE
        assert commit_in_txn(raw, producer, "g-many", offset) is NONE
        assert end(raw, producer) is NONE
        assert offset_of(raw, "g-many", stable=True) == offset


def test_an_end_that_is_repeated_is_answered_like_the_first(raw: RawKafka) -> None:
    producer = begun(raw, "again", "g-again", 5)
    assert [end(raw, producer) for _ in range(3)] == [NONE] * 3
    assert end(raw, producer, committed=False) is ErrorCode.INVALID_TXN_STATE


def test_without_a_transaction_there_is_nothing_to_end(raw: RawKafka) -> None:
    producer = inited(raw, "nothing")
    assert end(raw, producer) is ErrorCode.INVALID_TXN_STATE
    assert end(raw, producer, committed=False) is ErrorCode.INVALID_TXN_STATE
    assert end(raw, producer, committed=False, version=5) is NONE


def test_what_was_not_added_is_refused(raw: RawKafka) -> None:
    producer = inited(raw, "not-added")
    refused = commit_in_txn(raw, producer, "g-not-added", 1)
    assert refused is ErrorCode.INVALID_TXN_STATE
    assert add_partition(raw, producer, "no-such-topic") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert add_partition(raw, producer, partition=9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_newer_producer_fences_and_aborts_the_older_one(raw: RawKafka) -> None:
    old = begun(raw, "fenced", "g-fenced", 5)
    new = inited(raw, "fenced")
    assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 1)
    assert offset_of(raw, "g-fenced", stable=True) == -1
    assert end(raw, old) is ErrorCode.PRODUCER_FENCED
    assert end(raw, old, version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert add_partition(raw, old) is ErrorCode.PRODUCER_FENCED
    assert add_partition(raw, old, version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert commit_in_txn(raw, old, "g-fenced", 5) is ErrorCode.PRODUCER_FENCED
    assert add_partition(raw, new) is NONE
    assert end(raw, new) is NONE


def test_the_end_of_a_fenced_producer_is_not_answered_with_that_of_its_successor(
    raw: RawKafka,
) -> None:
    older = begun(raw, "successor", "g-older", 5)
    newer = begun(raw, "successor", "g-newer", 6)
    assert newer.epoch == older.epoch + 1, "as if an END of the older one had raised it"
    assert end(raw, newer) is NONE
    assert end(raw, older) is ErrorCode.PRODUCER_FENCED
    assert offset_of(raw, "g-older", stable=True) == -1


def test_a_session_that_was_fenced_before_it_began_is_in_nobodys_way(
    raw: RawKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, fenced = KafkaSessions.begin, set[str]()

    async def begin(self: KafkaSessions, id: Any, name: str, client: Any) -> Any:
        if not fenced or name in fenced:  # as remembered for good
            fenced.add(name)
            raise ProducerFenced("a client of Pulsar's was faster")
        return await right(self, id, name, client)

    first = inited(raw, "overtaken")
    monkeypatch.setattr(KafkaSessions, "begin", begin)
    assert init(raw, "overtaken") is ErrorCode.CONCURRENT_TRANSACTIONS
    assert inited(raw, "overtaken").epoch == first.epoch + 1


def test_a_producer_that_recovers_gets_a_newer_epoch(raw: RawKafka) -> None:
    producer = begun(raw, "recovers", "g-recovers", 5)
    newer = inited(raw, "recovers", producer)
    assert (newer.producer_id, newer.epoch) == (producer.producer_id, producer.epoch + 1)
    assert inited(raw, "recovers", producer) == newer  # its answer was lost
    assert offset_of(raw, "g-recovers", stable=True) == -1
    newest = inited(raw, "recovers")
    assert init(raw, "recovers", newer) is ErrorCode.PRODUCER_FENCED
    assert newest.epoch == newer.epoch + 1


def test_strangers_are_refused(raw: RawKafka) -> None:
    stranger = TxnProducer("stranger", 4711, 0)
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert init(raw, "stranger", stranger) is mapping
    assert end(raw, stranger) is mapping
    known = inited(raw, "stranger")
    assert add_partition(raw, known._replace(producer_id=4711)) is mapping
    assert init(raw, "") is ErrorCode.INVALID_REQUEST
    assert init(raw, "x" * 257) is ErrorCode.INVALID_REQUEST
    for timeout_ms in (0, -1, 2**31 - 1):
        refused = init(raw, "times", transaction_timeout_ms=timeout_ms)
        assert refused is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_members_of_an_old_generation_commit_nothing(raw: RawKafka) -> None:
    producer = inited(raw, "zombie")
    assert add_group(raw, producer, "g-zombie") is NONE
    member = {"member_id": "gone", "generation_id": 3}
    refused = commit_in_txn(raw, producer, "g-zombie", 5, **member)
    assert refused is ErrorCode.ILLEGAL_GENERATION
    assert end(raw, producer) is NONE
    assert offset_of(raw, "g-zombie") == -1


def test_with_version_two_the_group_joins_by_itself_and_the_epoch_rises(raw: RawKafka) -> None:
    producer = inited(raw, "v2")
    assert commit_in_txn(raw, producer, "g-v2", 5, version=5) is NONE
    answer = raw.ask(26, 5, {**producer.fields, "committed": True})
    assert (answer["error_code"], answer["producer_epoch"]) == (NONE, producer.epoch + 1)
    assert offset_of(raw, "g-v2", stable=True) == 5
    assert end(raw, producer, version=5) is NONE  # repeated
    assert end(raw, producer, committed=False, version=5) is ErrorCode.INVALID_TXN_STATE
    late = commit_in_txn(raw, producer, "g-v2", 9, version=5)
    assert late is ErrorCode.PRODUCER_FENCED
    next_one = producer._replace(epoch=producer.epoch + 1)
    assert commit_in_txn(raw, next_one, "g-v2", 6, version=5) is NONE
    assert end(raw, next_one, version=5) is NONE
    assert offset_of(raw, "g-v2", stable=True) == 6


def test_a_transaction_that_timed_out_must_be_aborted_before_the_next(
    running: RunningBroker, raw: RawKafka
) -> None:
    producer = begun(raw, "late", "g-late", 5)
    running.clock.advance("61s")
    running.wait_until(lambda: offset_of(raw, "g-late", stable=True) == -1)
    assert add_partition(raw, producer) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(raw, producer, version=4) is ErrorCode.TRANSACTION_ABORTABLE
    assert end(raw, producer) is ErrorCode.PRODUCER_FENCED
    assert end(raw, producer, committed=False) is NONE
    assert add_partition(raw, producer) is NONE
    assert end(raw, producer) is NONE


def test_a_pulsar_client_with_the_same_id_fences_the_producer(
    running: RunningBroker, raw: RawKafka
) -> None:
    producer = begun(raw, "both", "g-both", 5)
    url = running.service_url
    with Client(url, enable_transaction=True, transactional_id="both") as client:
        mine = client.new_transaction()
        assert offset_of(raw, "g-both", stable=True) == -1
        assert end(raw, producer) is ErrorCode.PRODUCER_FENCED
        assert add_partition(raw, producer) is ErrorCode.PRODUCER_FENCED
        newer = inited(raw, "both")
        with pytest.raises(InvalidTxnStatus):
            mine.commit()
    assert add_partition(raw, newer) is NONE
    assert end(raw, newer) is NONE


def test_transactions_are_listed_and_described(raw: RawKafka) -> None:
    producer = begun(raw, "shown", "g-shown", 5)

    def listed(**filters: object) -> list[str]:
        asked = {"state_filters": [], "producer_id_filters": [], **filters}
        answer = raw.ask(LIST_TRANSACTIONS, 2, asked)
        return [each["transactional_id"] for each in answer["transaction_states"]]

    assert "shown" in listed()
    assert "shown" in listed(state_filters=["Ongoing"])
    assert "shown" not in listed(state_filters=["Empty"])
    assert listed(producer_id_filters=[producer.producer_id]) == ["shown"]
    assert listed(transactional_id_pattern="sho.*") == ["shown"]
    assert "shown" not in listed(duration_filter=3_600_000)
    ids = {"transactional_ids": ["shown", "nobody's"]}
    found, missing = raw.ask(DESCRIBE_TRANSACTIONS, 0, ids)["transaction_states"]
    assert missing["error_code"] == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert (found["transaction_state"], found["producer_epoch"]) == ("Ongoing", producer.epoch)
    topics = {each["topic"]: each["partitions"] for each in found["topics"]}
    assert topics["orders"] == [0] and "__consumer_offsets" in topics
    assert end(raw, producer) is NONE
    (found, _) = raw.ask(DESCRIBE_TRANSACTIONS, 0, ids)["transaction_states"]
    assert (found["transaction_state"], found["topics"]) == ("CompleteCommit", [])


@pytest.mark.parametrize("committed", [True, False])
def test_a_broker_that_was_killed_knows_the_open_transaction(
    tmp_path: Path, committed: bool
) -> None:
    with broker(data_dir=tmp_path, kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw)
            producer = begun(raw, "p", "g", 5)
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert offset_of(raw, "g", stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
            assert add_partition(raw, producer) is NONE
            assert end(raw, producer, committed) is NONE
            assert offset_of(raw, "g", stable=True) == (5 if committed else -1)
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert end(raw, producer, committed) is NONE
            assert offset_of(raw, "g", stable=True) == (5 if committed else -1)
            assert inited(raw, "p").epoch == producer.epoch + 1


def test_a_transaction_that_timed_out_stays_its_producers_also_after_a_restart(
    tmp_path: Path,
) -> None:
    """Otherwise the rest of the producer's work would be a transaction, and be committed."""
    with broker(data_dir=tmp_path, kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw)
            producer = begun(raw, "p", "g", 5)
            running.clock.advance("61s")
            running.wait_until(lambda: offset_of(raw, "g", stable=True) == -1)
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert add_partition(raw, producer) is ErrorCode.INVALID_PRODUCER_EPOCH
            assert end(raw, producer, version=4) is ErrorCode.TRANSACTION_ABORTABLE
            assert end(raw, producer, committed=False) is NONE
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert add_partition(raw, producer) is NONE
            assert end(raw, producer) is NONE


def test_no_two_producers_have_an_epoch_that_an_end_and_a_newer_producer_raise_at_once(
    tmp_path: Path,
) -> None:
    async def is_initialising(found: Any) -> bool:
        live = found._kafka.services.transactions._live.values()
        return any(producer.is_initialising for _, producer in live)

    with (
        broker(data_dir=tmp_path, kafka=True, faults=True) as running,
        RawKafka(running.kafka_bootstrap) as raw,
        RawKafka(running.kafka_bootstrap) as other,
    ):
        create(raw)
        older = inited(raw, "p")
        assert commit_in_txn(raw, older, "g", 5, version=5) is NONE
        hold = running.faults.inject("transaction.pending_ack.before", "hold")
        raw.send(END_TXN, 5, {**older.fields, "committed": True})
        hold.wait_for_hit()
        other.send(INIT_PRODUCER_ID, 4, {"transactional_id": "p", "transaction_timeout_ms": 60_000})
        running.wait_until(lambda: running.call(is_initialising))
        hold.release()
        ended, newer = raw.receive(), other.receive()
        assert (ended["error_code"], newer["error_code"]) == (NONE, NONE)
        assert ended["producer_epoch"] == older.epoch + 1
        assert newer["producer_epoch"] == older.epoch + 2


POINTS = [
    f"transaction.{step}.{when}"
    for step in ("decided", "pending_ack", "completed")
    for when in ("before", "after")
]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("version", [3, 5])
def test_a_commit_survives_a_crash_at_each_step(tmp_path: Path, point: str, version: int) -> None:
    """An END that is repeated after the crash commits, whatever the broker had written by then."""
    with broker(data_dir=tmp_path, kafka=True, faults=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw)
            producer = inited(raw, "p")
            if version < 5:
                assert add_partition(raw, producer) is NONE
                assert add_group(raw, producer, "g") is NONE
            assert commit_in_txn(raw, producer, "g", 5, version=version) is NONE
            crash = running.faults.inject(point, "crash")
            raw.send(END_TXN, version, {**producer.fields, "committed": True})
            crash.wait_for_hit()
        running.start()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert end(raw, producer, version=version) is NONE
            assert offset_of(raw, "g", stable=True) == 5
