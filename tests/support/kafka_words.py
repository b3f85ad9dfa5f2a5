"""Requests of groups and transactions, in a word each."""

from typing import Any, NamedTuple

from kafka_produce import TOPIC
from raw_kafka import Asks

from pybroker.kafka.errors import ErrorCode

OFFSET_COMMIT, OFFSET_FETCH = 8, 9
INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28


class TxnProducer(NamedTuple):
    """A transactional producer, as its requests name it."""

    name: str
    producer_id: int
    epoch: int

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }


def init(
    raw: Asks, name: str, again: TxnProducer | None = None, **more: Any
) -> TxnProducer | ErrorCode:
    asked = {"transactional_id": name, "transaction_timeout_ms": 60_000, **more}
    if again is not None:
        asked |= {"producer_id": again.producer_id, "producer_epoch": again.epoch}
    answer = raw.ask(INIT_PRODUCER_ID, 4, asked)
    if answer["error_code"]:
        return ErrorCode(answer["error_code"])
    return TxnProducer(name, answer["producer_id"], answer["producer_epoch"])


def inited(raw: Asks, name: str, again: TxnProducer | None = None) -> TxnProducer:
    found = init(raw, name, again)
    assert isinstance(found, TxnProducer), found
    return found


def add_partition(
    raw: Asks, producer: TxnProducer, topic: str = TOPIC, version: int = 3, partition: int = 0
) -> ErrorCode:
    fields = {f"v3_and_below_{name}": value for name, value in producer.fields.items()}
    topics = [{"name": topic, "partitions": [partition]}]
    answer = raw.ask(ADD_PARTITIONS, version, {**fields, "v3_and_below_topics": topics})
    (result,) = answer["results_by_topic_v3_and_below"][0]["results_by_partition"]
    return ErrorCode(result["partition_error_code"])


def add_group(raw: Asks, producer: TxnProducer, group: str) -> ErrorCode:
    answer = raw.ask(ADD_OFFSETS, 3, {**producer.fields, "group_id": group})
    return ErrorCode(answer["error_code"])


def commit_in_txn(
    raw: Asks,
    producer: TxnProducer,
    group: str,
    offset: int,
    version: int = 3,
    topic: str = TOPIC,
    **more: Any,
) -> ErrorCode:
    place = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    topics = [{"name": topic, "partitions": [place]}]
    asked = {**producer.fields, "group_id": group, "topics": topics, **more}
    answer = raw.ask(TXN_OFFSET_COMMIT, version, asked)
    return ErrorCode(answer["topics"][0]["partitions"][0]["error_code"])


def end(raw: Asks, producer: TxnProducer, committed: bool = True, version: int = 3) -> ErrorCode:
    asked = {**producer.fields, "committed": committed}
    return ErrorCode(raw.ask(END_TXN, version, asked)["error_code"])


def offset_of(raw: Asks, group: str, stable: bool = False, topic: str = TOPIC) -> int | ErrorCode:
    asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
    (found,) = raw.ask(OFFSET_FETCH, 8, {"groups": [asked], "require_stable": stable})["groups"]
    (partition,) = found["topics"][0]["partitions"]
    if partition["error_code"]:
        return ErrorCode(partition["error_code"])
    offset: int = partition["committed_offset"]
    return offset
