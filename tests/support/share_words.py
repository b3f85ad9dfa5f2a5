"""A member of a share group, byte by byte."""

from dataclasses import dataclass, field
from typing import Any, Final

from kafka_batches import batch_records, split_batches
from kafka_produce import METADATA, TOPIC
from raw_kafka import Asks

from pybroker.kafka.shares.acquired import AckType

SHARE_BEAT, SHARE_DESCRIBE, SHARE_FETCH, SHARE_ACKNOWLEDGE, ALTER_CONFIGS = 76, 77, 78, 79, 44
GROUP: Final = 32
LEAVES: Final = -1
ENDS: Final = -1
Said = tuple[int, int, list[AckType]]


def set_config(raw: Asks, group: str, name: str, value: str) -> int:
    change = {"name": name, "config_operation": 0, "value": value}
    asked = {"resource_type": GROUP, "resource_name": group, "configs": [change]}
    (answer,) = raw.ask(ALTER_CONFIGS, 1, {"resources": [asked]})["responses"]
    code: int = answer["error_code"]
    return code


def from_the_beginning(raw: Asks, group: str) -> None:
    assert set_config(raw, group, "share.auto.offset.reset", "earliest") == 0


def topic_id(raw: Asks, topic: str) -> bytes:
    (found,) = raw.ask(METADATA, 12, {"topics": [{"name": topic}]})["topics"]
    return bytes(found["topic_id"])


def share_beat(
    raw: Asks, group: str, member: str, epoch: int, topics: list[str] | None = None
) -> dict[str, Any]:
    body = {"group_id": group, "member_id": member, "member_epoch": epoch}
    return raw.ask(SHARE_BEAT, 1, body | {"subscribed_topic_names": topics})


@dataclass
class Got:
    """Of one partition."""

    error: int = 0
    ack_error: int = 0
    values: dict[int, bytes] = field(default_factory=dict)  # acquired, by offset
    counts: dict[int, int] = field(default_factory=dict)  # of deliveries

    @property
    def texts(self) -> list[str]:
        return [each.decode() for each in self.values.values()]


class ShareMember:
    """One session on one partition."""

    def __init__(
        self, raw: Asks, group: str, member: str, topic: str = TOPIC, partition: int = 0
    ) -> None:
        self.raw, self.group, self.member = raw, group, member
        self.topic_id, self.partition = topic_id(raw, topic), partition
        self.epoch = 0
        self.lock_ms = 0

    def fetch(self, *said: Said, records: int = 500, wait_ms: int = 200, **fields: Any) -> Got:
        answer = self.ask_fetch(*said, records=records, wait_ms=wait_ms, **fields)
        assert answer["error_code"] == 0, answer
        self.lock_ms = answer["acquisition_lock_timeout_ms"]
        return got(answer["responses"])

    def ask_fetch(
        self, *said: Said, records: int = 500, wait_ms: int = 200, **fields: Any
    ) -> dict[str, Any]:
        body = self._body(said) | {
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": records,
            "batch_size": records,
            "forgotten_topics_data": [],
        }
        answer = self.raw.ask(SHARE_FETCH, 2, body | fields)
        self.epoch += self.epoch >= 0
        return answer

    def say(self, *said: Said, **fields: Any) -> Got:
        answer = self.raw.ask(SHARE_ACKNOWLEDGE, 2, self._body(said) | fields)
        assert answer["error_code"] == 0, answer
        self.epoch += self.epoch >= 0
        (partition,) = answer["responses"][0]["partitions"]
        return Got(ack_error=partition["error_code"])

    def leave(self) -> None:
        """Ends the session."""
        self.epoch = ENDS
        self.fetch()

    def _body(self, said: tuple[Said, ...]) -> dict[str, Any]:
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": types}
            for first, last, types in said
        ]
        partition = {"partition_index": self.partition, "acknowledgement_batches": batches}
        return {
            "group_id": self.group,
            "member_id": self.member,
            "share_session_epoch": self.epoch,
            "topics": [{"topic_id": self.topic_id, "partitions": [partition]}],
        }


def got(responses: list[dict[str, Any]]) -> Got:
    """What a response of ShareFetch has, for one partition at most."""
    if not responses:
        return Got()
    (partition,) = responses[0]["partitions"]
    got = Got(partition["error_code"], partition["acknowledge_error_code"])
    there = {}
    for batch in split_batches(bytes(partition["records"] or b"")):
        header, records = batch_records(batch)
        there |= {header.base_offset + each.offset_delta: each.value for each in records}
    for each in partition["acquired_records"]:
        for offset in range(each["first_offset"], each["last_offset"] + 1):
            got.values[offset] = there[offset]
            got.counts[offset] = each["delivery_count"]
    return got
