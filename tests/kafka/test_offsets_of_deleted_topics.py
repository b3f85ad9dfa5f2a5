"""A topic that was deleted begins anew, however it was deleted: a group that went on at its former
offset would pass over what is written now.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_produce import create
from kafka_words import OFFSET_COMMIT, add_group, commit_in_txn, end, inited, offset_of
from raw_kafka import RawKafka

from pybroker.base.names import TopicName
from pybroker.kafka.errors import ErrorCode
from pybroker.process.kafka_offsets import LazyOffsets
from pybroker.testing import RunningBroker, broker

DELETE_TOPICS, OFFSET_FETCH = 20, 9
NONE = ErrorCode.NONE


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True, default_num_partitions=2) as started:
        yield started


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


def commit(raw: RawKafka, group: str, topic: str, *offsets: int) -> None:
    """One for each partition."""
    places = [
        {"partition_index": at, "committed_offset": offset, "committed_metadata": ""}
        for at, offset in enumerate(offsets)
    ]
    asked = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": places}],
    }
    (answer,) = raw.ask(OFFSET_COMMIT, 7, asked)["topics"]
    assert not any(each["error_code"] for each in answer["partitions"])


def offsets(raw: RawKafka, group: str) -> dict[tuple[str, int], int]:
    asked = {"groups": [{"group_id": group, "topics": None}], "require_stable": False}
    (found,) = raw.ask(OFFSET_FETCH, 8, asked)["groups"]
    return {
        (topic["name"], each["partition_index"]): each["committed_offset"]
        for topic in found["topics"]
        for each in topic["partitions"]
    }


def full(topic: str) -> TopicName:
    return TopicName.parse(f"persistent://public/default/{topic}")


def by_kafka(running: RunningBroker, topic: str) -> None:
    with RawKafka(running.kafka_bootstrap) as raw:
        raw.ask(DELETE_TOPICS, 5, {"topic_names": [topic], "timeout_ms": 10_000})


def by_pulsar(running: RunningBroker, topic: str) -> None:
    running.call(lambda started: started.topics.delete_partitioned(full(topic), force=True))


@pytest.mark.parametrize("delete", [by_kafka, by_pulsar])
def test_its_offsets_are_forgotten(
    running: RunningBroker, raw: RawKafka, delete: Callable[[RunningBroker, str], None]
) -> None:
    topic, group = f"gone-{delete.__name__}", f"g-{delete.__name__}"
    for name in (topic, "stays"):
        create(raw, name)
        commit(raw, group, name, 5, 6)
    delete(running, topic)
    create(raw, topic)
    assert offsets(raw, group) == {("stays", 0): 5, ("stays", 1): 6}


def test_a_partition_that_is_deleted_alone_begins_anew(
    running: RunningBroker, raw: RawKafka
) -> None:
    create(raw, "parts")
    commit(raw, "g-parts", "parts", 5, 6)
    one = full("parts").partition_at(1)
    running.call(lambda started: started.topics.delete(one, force=True))
    assert offsets(raw, "g-parts") == {("parts", 0): 5}


def test_topics_of_other_namespaces_have_other_names(running: RunningBroker, raw: RawKafka) -> None:
    create(raw, "namesake")
    commit(raw, "g-namesake", "namesake", 5)

    async def others(started: Any) -> None:
        for text in ("non-persistent://public/default/namesake", "persistent://public/o/namesake"):
            await started.kafka_offsets.forget_topic(TopicName.parse(text))

    running.call(others)
    assert offsets(raw, "g-namesake") == {("namesake", 0): 5}


def test_offsets_in_a_transaction_are_forgotten(running: RunningBroker, raw: RawKafka) -> None:
    for name in ("orders", "other"):
        create(raw, name)
    producer = inited(raw, "p")
    assert add_group(raw, producer, "g-txn") is NONE
    for name in ("orders", "other"):
        assert commit_in_txn(raw, producer, "g-txn", 5, topic=name) is NONE
    by_pulsar(running, "orders")
    create(raw, "orders")
    assert offset_of(raw, "g-txn", stable=True) == -1
    assert end(raw, producer) is NONE
    assert offsets(raw, "g-txn") == {("other", 0): 5}


def test_they_are_forgotten_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion is decided, and goes on with the next start."""
    with broker(data_dir=tmp_path, kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw, "orders")
            commit(raw, "g", "orders", 5)
            with monkeypatch.context() as patched:
                reached = []

                async def hang(offsets: LazyOffsets, topic: TopicName) -> None:
                    reached.append(topic)
                    await asyncio.Event().wait()

                patched.setattr(LazyOffsets, "forget_topic", hang)
                running.kill_and_restart()
                with RawKafka(running.kafka_bootstrap) as again:
                    topics = {"topic_names": ["orders"], "timeout_ms": 10_000}
                    again.send(DELETE_TOPICS, 5, topics)
                    running.wait_until(lambda: bool(reached))
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw, "orders")
            assert offsets(raw, "g") == {}
