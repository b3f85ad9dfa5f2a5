"""Versions of requests that name topics by their ids (KIP-516), as the newest clients send them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from uuid import RFC_4122, UUID

import pytest
from kafka_batches import batch_records
from kafka_produce import FETCH, METADATA, PRODUCE, batch, create, fetch_body, produce_body
from raw_kafka import RawKafka

from pybroker.base.runtime import SystemClock, Tasks
from pybroker.kafka import topics
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.names import KafkaNames
from pybroker.kafka.topic_ids import TopicIds
from pybroker.testing import RunningBroker, broker

OFFSET_COMMIT, OFFSET_FETCH = 8, 9
NOBODYS: Final = b"no topic has it."
NONE, UNKNOWN_ID = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        yield started


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


def id_of(raw: RawKafka, topic: str) -> bytes:
    create(raw, topic)
    (found,) = raw.ask(METADATA, 12, {"topics": [{"name": topic}]})["topics"]
    topic_id: bytes = found["topic_id"]
    return topic_id


def produced(raw: RawKafka, topic_id: bytes, value: bytes) -> dict[str, Any]:
    body = produce_body("", batch(value))
    body["topic_data"][0]["topic_id"] = topic_id
    (topic,) = raw.ask(PRODUCE, 13, body)["responses"]
    assert topic["topic_id"] == topic_id
    partition: dict[str, Any] = topic["partition_responses"][0]
    return partition


def fetched(raw: RawKafka, topic_id: bytes, version: int) -> dict[str, Any]:
    body = fetch_body("", 0)
    body["topics"][0]["topic_id"] = topic_id
    (topic,) = raw.ask(FETCH, version, body)["responses"]
    assert topic["topic_id"] == topic_id
    partition: dict[str, Any] = topic["partitions"][0]
    return partition


@pytest.mark.parametrize("version", range(13, 19))
def test_what_was_produced_by_id_is_fetched_by_id(raw: RawKafka, version: int) -> None:
    topic_id = id_of(raw, f"orders-{version}")
    assert produced(raw, topic_id, b"one lamp")["error_code"] == NONE
    partition = fetched(raw, topic_id, version)
    assert partition["error_code"] == NONE
    assert [each.value for each in batch_records(partition["records"])[1]] == [b"one lamp"]


def test_an_id_that_no_topic_has_is_unknown(raw: RawKafka) -> None:
    assert produced(raw, NOBODYS, b"lost")["error_code"] == UNKNOWN_ID
    assert fetched(raw, NOBODYS, 13)["error_code"] == UNKNOWN_ID


def test_ids_are_known_again_after_a_restart(tmp_path: Path) -> None:
    with broker(data_dir=tmp_path, kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            topic_id = id_of(raw, "orders")
            assert produced(raw, topic_id, b"kept")["base_offset"] == 0
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert produced(raw, topic_id, b"next")["base_offset"] == 1


def test_who_asks_for_a_topic_that_is_gone_does_not_make_all_be_looked_at_each_time(
    raw: RawKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    shown = topics.shown_topics

    def counted(services: Any) -> Any:
        looks.append(services)
        return shown(services)

    monkeypatch.setattr(topics, "shown_topics", counted)
    for _ in range(5):
        fetched(raw, NOBODYS, 13)
    assert len(looks) <= 2


def test_all_topics_are_looked_at_again_after_a_second() -> None:
    ids = TopicIds(KafkaNames("public", "default"))
    assert ids.may_look(0)
    assert not ids.may_look(0.9)
    assert ids.may_look(1.9)


def test_ids_that_were_forgotten_are_known_when_they_are_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pybroker.kafka.topic_ids._MOST_REMEMBERED", 2)
    names: Any = SimpleNamespace(namespace_name="public/default")
    ids = TopicIds(names)
    told = {name: ids.of(name) for name in ("a", "b", "c")}
    assert len(set(told.values())) == 3
    assert (ids.name_of(told["a"]), ids.name_of(told["c"])) == (None, "c")
    assert ids.of("a") == told["a"]
    assert ids.name_of(told["a"]) == "a"


def test_an_id_is_a_uuid_whose_bits_the_software_chooses() -> None:
    names: Any = SimpleNamespace(namespace_name="public/default")
    for name in ("a", "b", "c", "d"):
        found = UUID(bytes=TopicIds(names).of(name))
        assert (found.version, found.variant) == (8, RFC_4122)


def test_who_asks_while_all_topics_are_looked_at_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a restart the second of two clients was told that there is no such topic."""
    ids = TopicIds(KafkaNames("public", "default"))
    services: Any = SimpleNamespace(topic_ids=ids, tasks=Tasks("test"), clock=SystemClock())
    asked = TopicIds(KafkaNames("public", "default")).of("orders")

    async def shown(_: Any) -> AsyncIterator[tuple[str, int]]:
        await asyncio.sleep(0)
        yield "orders", 1

    async def name() -> str | None:
        await topics.learn_ids(services, [asked])
        return ids.name_of(asked)

    async def both() -> list[str | None]:
        return await asyncio.gather(name(), name())

    monkeypatch.setattr(topics, "shown_topics", shown)
    assert asyncio.run(both()) == ["orders", "orders"]


def committed(raw: RawKafka, topic_id: bytes) -> int:
    place = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "m"}
    body = {
        "group_id": "by-id",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"topic_id": topic_id, "partitions": [place]}],
    }
    (topic,) = raw.ask(OFFSET_COMMIT, 10, body)["topics"]
    assert topic["topic_id"] == topic_id
    code: int = topic["partitions"][0]["error_code"]
    return code


def offsets(raw: RawKafka, *topic_ids: bytes) -> dict[bytes, tuple[int, int]]:
    """The code and the offset, by id; without ids, of all topics."""
    asked = [{"topic_id": each, "partition_indexes": [0]} for each in topic_ids]
    group = {"group_id": "by-id", "topics": asked if topic_ids else None}
    (found,) = raw.ask(OFFSET_FETCH, 10, {"groups": [group]})["groups"]
    return {
        topic["topic_id"]: (each["error_code"], each["committed_offset"])
        for topic in found["topics"]
        for each in topic["partitions"]
    }


def test_offsets_are_committed_and_fetched_by_id(raw: RawKafka) -> None:
    topic_id = id_of(raw, "committed")
    assert committed(raw, topic_id) == NONE
    assert committed(raw, NOBODYS) == UNKNOWN_ID
    assert offsets(raw) == {topic_id: (NONE, 7)}
    both = offsets(raw, topic_id, NOBODYS)
    assert both == {topic_id: (NONE, 7), NOBODYS: (UNKNOWN_ID, -1)}
