"""Transactional producers of Kafka's in a cluster: each request goes to the broker it is for."""

from dataclasses import dataclass, field
from typing import Any, Final

from kafka_cluster import KafkaCluster
from kafka_produce import PRODUCE, batch, produce_body
from txn_cluster import TxnBroker

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.records.batch import HEADER_BYTES, TRANSACTIONAL, header_of, split_batches
from pybroker.kafka.records.record import read_records

INIT, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28
NONE: Final = ErrorCode.NONE
# Of transaction.version 1 and 2: Produce, TxnOffsetCommit, EndTxn.
VERSIONS: Final = {1: (9, 3, 3), 2: (12, 5, 5)}


@dataclass
class Producer:
    """`at`: the broker that coordinates it. With version 2, what it writes to is added at once."""

    cluster: KafkaCluster
    at: TxnBroker
    name: str
    version: int = 1
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[str, int] = field(default_factory=dict)

    def init(self) -> ErrorCode:
        asked = {"transactional_id": self.name, "transaction_timeout_ms": 60_000}
        asked |= {"producer_id": -1, "producer_epoch": -1}
        answer = self.cluster.ask(self.at, INIT, 4, asked)
        self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        self.sequences = {}
        return ErrorCode(answer["error_code"])

    def inited(self) -> "Producer":
        again = ErrorCode.CONCURRENT_TRANSACTIONS
        assert self.cluster.settled(self.at, self.init, again) == NONE
        return self

    @property
    def _fields(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def add(self, topic: str) -> ErrorCode:
        fields = {f"v3_and_below_{name}": value for name, value in self._fields.items()}
        body = {**fields, "v3_and_below_topics": [{"name": topic, "partitions": [0]}]}
        answer = self.cluster.ask(self.at, ADD_PARTITIONS, 3, body)
        (found,) = answer["results_by_topic_v3_and_below"]
        return ErrorCode(found["results_by_partition"][0]["partition_error_code"])

    def add_group(self, group: str) -> ErrorCode:
        body = {**self._fields, "group_id": group}
        return ErrorCode(self.cluster.ask(self.at, ADD_OFFSETS, 3, body)["error_code"])

    def publish(self, leader: TxnBroker, topic: str, value: bytes) -> ErrorCode:
        sequence = self.sequences.get(topic, 0)
        records = batch(
            value,
            attributes=TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        body = produce_body(topic, records) | {"transactional_id": self.name}
        answer = self.cluster.ask(leader, PRODUCE, VERSIONS[self.version][0], body)
        (found,) = answer["responses"][0]["partition_responses"]
        if not found["error_code"]:
            self.sequences[topic] = sequence + 1
        return ErrorCode(found["error_code"])

    def commit_offset(self, coordinator: TxnBroker, group: str, offset: int) -> ErrorCode:
        place = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        body = {**self._fields, "group_id": group}
        body |= {"topics": [{"name": "orders", "partitions": [place]}]}
        body |= {"generation_id": -1, "member_id": "", "group_instance_id": None}
        version = VERSIONS[self.version][1]
        (found,) = self.cluster.ask(coordinator, TXN_OFFSET_COMMIT, version, body)["topics"]
        return ErrorCode(found["partitions"][0]["error_code"])

    def end(self, commit: bool = True) -> ErrorCode:
        body = {**self._fields, "committed": commit}
        answer = self.cluster.ask(self.at, END_TXN, VERSIONS[self.version][2], body)
        if self.version > 1 and not answer["error_code"]:
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
            self.sequences = {}
        return ErrorCode(answer["error_code"])


def read(cluster: KafkaCluster, leader: TxnBroker, topic: str) -> list[bytes]:
    """The values that a consumer of committed records gets."""
    found = cluster.fetch(leader, topic, 0, committed=True)
    assert not found["error_code"], ErrorCode(found["error_code"])
    values: list[bytes] = []
    for each in split_batches(found["records"]):
        count = header_of(each).record_count
        values += [record.value or b"" for record in read_records(each[HEADER_BYTES:], count)]
    return values
