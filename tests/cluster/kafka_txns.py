"""Transactional producers of Kafka's in a cluster: each request goes to the broker it is for."""

from dataclasses import dataclass, field
from typing import Final

import kafka_words
from kafka_batches import split_batches
from kafka_cluster import KafkaCluster
from kafka_produce import batch, produce
from kafka_words import END_TXN, TxnProducer, add_partition, commit_in_txn
from txn_cluster import TxnBroker

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.records.batch import HEADER_BYTES, TRANSACTIONAL, header_of
from pybroker.kafka.records.record import read_records

NO_MEMBER: Final = {"generation_id": -1, "member_id": "", "group_instance_id": None}
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
        found = kafka_words.init(self.cluster.at(self.at), self.name)
        if isinstance(found, ErrorCode):
            return found
        self.producer_id, self.epoch = found.producer_id, found.epoch
        self.sequences = {}
        return NONE

    def inited(self) -> "Producer":
        again = ErrorCode.CONCURRENT_TRANSACTIONS
        assert self.cluster.settled(self.at, self.init, again) == NONE
        return self

    @property
    def named(self) -> TxnProducer:
        return TxnProducer(self.name, self.producer_id, self.epoch)

    def add(self, topic: str) -> ErrorCode:
        return add_partition(self.cluster.at(self.at), self.named, topic)

    def add_group(self, group: str) -> ErrorCode:
        return kafka_words.add_group(self.cluster.at(self.at), self.named, group)

    def publish(self, leader: TxnBroker, topic: str, value: bytes) -> ErrorCode:
        sequence = self.sequences.get(topic, 0)
        records = batch(
            value,
            attributes=TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        version = VERSIONS[self.version][0]
        code, _ = produce(
            self.cluster.at(leader), topic, records, version, transactional_id=self.name
        )
        if not code:
            self.sequences[topic] = sequence + 1
        return ErrorCode(code)

    def commit_offset(self, coordinator: TxnBroker, group: str, offset: int) -> ErrorCode:
        raw, version = self.cluster.at(coordinator), VERSIONS[self.version][1]
        return commit_in_txn(raw, self.named, group, offset, version, **NO_MEMBER)

    def end(self, commit: bool = True) -> ErrorCode:
        body = {**self.named.fields, "committed": commit}
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
