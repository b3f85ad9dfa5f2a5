"""Members of a share group in a cluster, which follow the leader of their partition."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

from kafka_cluster import KafkaCluster
from kafka_produce import METADATA
from share_words import SHARE_ACKNOWLEDGE, SHARE_FETCH, Got, got
from sim_kafka import SimKafka

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.shares.acquired import AckType

_LOST: Final = (OSError, EOFError, asyncio.IncompleteReadError)
_FETCH: Final = {
    "max_wait_ms": 500,
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "max_records": 4,
    "batch_size": 4,
    "forgotten_topics_data": [],
}


class Record(NamedTuple):
    topic: str
    offset: int


@dataclass
class Shared:
    """What all members were handed, and said."""

    accepted: dict[Record, float] = field(default_factory=dict)  # when that was answered
    perhaps: set[Record] = field(default_factory=set)  # it said so, with an answer or without
    released: dict[Record, float] = field(default_factory=dict)  # answered: when it was said
    heard: dict[Record, float] = field(default_factory=dict)  # when it was delivered last
    deliveries: int = 0
    broken: list[str] = field(default_factory=list)

    @property
    def kept_back(self) -> list[Record]:
        """What was released and never came again."""
        return [each for each, said_s in self.released.items() if self.heard[each] < said_s]

    def delivered(self, record: Record, asked_s: float) -> None:
        self.deliveries += 1
        self.heard[record] = asyncio.get_running_loop().time()
        if self.accepted.get(record, asked_s) < asked_s:
            self.broken.append(f"{record} was accepted and comes again")


class SharingMember:
    """Accepts most records, releases some, and forgets some, whose lock runs out."""

    def __init__(
        self, cluster: KafkaCluster, group: str, topic: str, name: str, shared: Shared
    ) -> None:
        self._cluster, self._group, self._topic, self._name = cluster, group, topic, name
        self._shared, self._rng = shared, Random(name)
        self.stopping = False

    async def run(self) -> None:
        while not self.stopping:
            with suppress(*_LOST):  # its broker has died
                await self._session()
            await asyncio.sleep(0.2)

    async def _session(self) -> None:
        """Until the partition has another leader."""
        found = await self._leader()
        if found is None:
            return
        port, topic_id = found
        kafka, epoch, said = await SimKafka.open("127.0.0.1", port), 0, dict[int, AckType]()
        try:
            while not self.stopping:
                key = SHARE_FETCH if not epoch or self._rng.random() < 0.7 else SHARE_ACKNOWLEDGE
                asked_s = asyncio.get_running_loop().time()
                body = self._body(topic_id, epoch, said)
                body |= _FETCH if key == SHARE_FETCH else {}
                answer = await asyncio.wait_for(kafka.ask(key, 2, body), 20)
                if answer["error_code"]:
                    return
                epoch += 1
                there = got(answer["responses"]) if key == SHARE_FETCH else _acked(answer)
                if not there.ack_error:
                    self._answered(said, asked_s)
                if there.error:
                    return
                said = self._decided(there, asked_s)
        finally:
            kafka.close()

    async def _leader(self) -> tuple[int, bytes] | None:
        """Its port, and the topic's id."""
        for broker in list(self._cluster.brokers):
            kafka = await SimKafka.open("127.0.0.1", broker.kafka_port)
            try:
                told = await kafka.ask(METADATA, 12, {"topics": [{"name": self._topic}]})
            finally:
                kafka.close()
            ports = {each["node_id"]: each["port"] for each in told["brokers"]}
            (topic,) = told["topics"]
            if topic["partitions"] and (leader := topic["partitions"][0]["leader_id"]) in ports:
                return ports[leader], topic["topic_id"]
        return None

    def _body(self, topic_id: bytes, epoch: int, said: dict[int, AckType]) -> dict[str, Any]:
        batches = [
            {"first_offset": at, "last_offset": at, "acknowledge_types": [kind]}
            for at, kind in sorted(said.items())
        ]
        partition = {"partition_index": 0, "acknowledgement_batches": batches}
        return {
            "group_id": self._group,
            "member_id": self._name,
            "share_session_epoch": epoch,
            "topics": [{"topic_id": topic_id, "partitions": [partition]}],
        }

    def _answered(self, said: dict[int, AckType], asked_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        for offset, kind in said.items():
            record = Record(self._topic, offset)
            if kind is AckType.ACCEPT:
                self._shared.accepted.setdefault(record, now_s)
            else:
                self._shared.released[record] = asked_s

    def _decided(self, there: Got, asked_s: float) -> dict[int, AckType]:
        said = {}
        for offset in there.values:
            self._shared.delivered(Record(self._topic, offset), asked_s)
            kinds = (AckType.ACCEPT, AckType.RELEASE, None)
            (kind,) = self._rng.choices(kinds, (8, 1, 1))
            if kind is not None:
                said[offset] = kind
            if kind is AckType.ACCEPT:
                self._shared.perhaps.add(Record(self._topic, offset))
        return said


def _acked(answer: dict[str, Any]) -> Got:
    (partition,) = answer["responses"][0]["partitions"] if answer["responses"] else ({},)
    code = partition.get("error_code", ErrorCode.NONE)
    return Got(code, code)
