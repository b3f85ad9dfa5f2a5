"""EndTxn of transaction.version 2: each answer has another epoch, whatever was ended, and whatever
was lost on the way. Batches that come late are in no transaction.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_batches import batch_records, split_batches
from kafka_produce import PRODUCE, TOPIC, batch, create, fetched, produce_body
from kafka_words import END_TXN, TxnProducer, add_partition, commit_in_txn, end, init, inited
from raw_kafka import RawKafka

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.records.batch import TRANSACTIONAL
from pybroker.kafka.transactions import ends
from pybroker.testing import RunningBroker, broker

NONE = ErrorCode.NONE
V2, ADDS = 5, 12  # versions of EndTxn and Produce


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        yield started


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        create(connected)
        yield connected


def sent(
    raw: RawKafka, producer: TxnProducer, value: bytes, sequence: int = 0, version: int = ADDS
) -> ErrorCode:
    fields: dict[str, Any] = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "base_sequence": sequence,
    }
    records = batch(value, attributes=TRANSACTIONAL, **fields)
    body = produce_body(TOPIC, records) | {"transactional_id": producer.name}
    (response,) = raw.ask(PRODUCE, version, body)["responses"][0]["partition_responses"]
    return ErrorCode(response["error_code"])


def ended(raw: RawKafka, producer: TxnProducer, committed: bool = True) -> TxnProducer:
    """The producer of the next transaction."""
    answer = raw.ask(END_TXN, V2, {**producer.fields, "committed": committed})
    assert answer["error_code"] == NONE
    return TxnProducer(producer.name, answer["producer_id"], answer["producer_epoch"])


def values(raw: RawKafka, prefix: bytes) -> list[bytes]:
    records = fetched(raw, TOPIC, 0, committed=True)["records"]
    found = [
        each.value or b"" for part in split_batches(records) for each in batch_records(part)[1]
    ]
    return [each for each in found if each.startswith(prefix)]


def test_what_comes_after_an_abort_of_nothing_is_not_in_the_next_transaction(raw: RawKafka) -> None:
    """The batch was on its way when its client gave it up."""
    producer = inited(raw, "late")
    after = ended(raw, producer, committed=False)
    assert after.epoch == producer.epoch + 1
    assert sent(raw, producer, b"late given up") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert sent(raw, after, b"late new") is NONE
    ended(raw, after)
    assert values(raw, b"late") == [b"late new"]


def test_an_abort_of_nothing_is_repeated(raw: RawKafka) -> None:
    producer = inited(raw, "repeated")
    after = ended(raw, producer, committed=False)
    assert ended(raw, producer, committed=False) == after
    assert end(raw, producer, version=V2) is ErrorCode.INVALID_TXN_STATE
    assert end(raw, after, version=V2) is ErrorCode.INVALID_TXN_STATE
    assert ended(raw, after, committed=False).epoch == after.epoch + 1


def test_the_version_of_the_end_decides_about_the_epoch(raw: RawKafka) -> None:
    """Its client begins at sequence 0 again exactly if it was told an epoch."""
    producer = inited(raw, "mixed")
    assert add_partition(raw, producer) is NONE
    assert sent(raw, producer, b"mixed 1", version=9) is NONE
    after = ended(raw, producer)
    assert after.epoch == producer.epoch + 1
    assert sent(raw, after, b"mixed 2") is NONE
    assert end(raw, after, version=4) is NONE
    assert sent(raw, after, b"mixed 3", sequence=1) is NONE
    assert ended(raw, after).epoch == after.epoch + 1
    assert values(raw, b"mixed") == [b"mixed 1", b"mixed 2", b"mixed 3"]


def test_a_client_that_lost_the_answer_to_its_end_may_begin_anew(raw: RawKafka) -> None:
    producer = inited(raw, "anew")
    assert sent(raw, producer, b"anew 1") is NONE
    after = ended(raw, producer)
    assert inited(raw, "anew", producer) == after
    newest = inited(raw, "anew")
    assert init(raw, "anew", producer) is ErrorCode.PRODUCER_FENCED
    assert newest.epoch == after.epoch + 1


@pytest.mark.parametrize("committed", [True, False])
def test_after_the_last_epoch_the_producer_has_another_id(
    raw: RawKafka, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    name = f"last {committed}"
    producer = inited(raw, name)
    monkeypatch.setattr(ends, "MAX_EPOCH", producer.epoch)
    assert sent(raw, producer, b"last") is NONE
    after = ended(raw, producer, committed)
    assert (after.producer_id != producer.producer_id, after.epoch) == (True, 0)
    assert ended(raw, producer, committed) == after  # the answer was lost
    assert end(raw, producer, not committed, version=V2) is ErrorCode.INVALID_TXN_STATE
    assert sent(raw, after, b"last and first") is NONE
    assert ended(raw, producer, committed) == after  # it comes late, and changes nothing
    ended(raw, after)
    assert end(raw, producer, committed, version=V2) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("what", ["nothing", "timed out"])
def test_an_epoch_that_was_told_outlives_a_crash(tmp_path: Path, what: str) -> None:
    """Of these ends the coordinator does not know that they were the client's."""
    with broker(data_dir=tmp_path, kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw)
            producer = inited(raw, "p")
            if what == "timed out":
                assert commit_in_txn(raw, producer, "g", 5, version=5) is NONE
                running.clock.advance("61s")
                refused = ErrorCode.TRANSACTION_ABORTABLE
                running.wait_until(lambda: end(raw, producer, version=V2) is refused)
            after = ended(raw, producer, committed=False)
            running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert sent(raw, after, b"after") is NONE
            ended(raw, after)
            assert values(raw, b"") == [b"after"]
