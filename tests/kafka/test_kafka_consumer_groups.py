"""KIP-848 over the wire: heartbeats, commits with member epochs, and the two kinds of groups."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_produce import METADATA, create
from kafka_words import OFFSET_COMMIT, offset_of
from raw_kafka import RawKafka

from pybroker.kafka.errors import ErrorCode
from pybroker.testing import RunningBroker, broker

BEAT, DESCRIBE, LIST_GROUPS, JOIN_GROUP, DELETE_GROUPS = 68, 69, 16, 11, 42
LEAVES = -1


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True, default_num_partitions=4) as started:
        with RawKafka(started.kafka_bootstrap) as raw:
            create(raw)
        yield started


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


def beat(raw: RawKafka, group: str, member_id: str, epoch: int, **more: Any) -> dict[str, Any]:
    body = {"group_id": group, "member_id": member_id, "member_epoch": epoch, **more}
    return raw.ask(BEAT, 1, body)


def join(raw: RawKafka, group: str, member_id: str, **more: Any) -> dict[str, Any]:
    asked = {"rebalance_timeout_ms": 60_000, "topic_partitions": [], **more}
    if "subscribed_topic_regex" not in more:
        asked.setdefault("subscribed_topic_names", ["orders"])
    return beat(raw, group, member_id, 0, **asked)


def partitions(answer: dict[str, Any]) -> list[int]:
    return [
        each for topic in answer["assignment"]["topic_partitions"] for each in topic["partitions"]
    ]


def commit(raw: RawKafka, group: str, member_id: str, epoch: int, offset: int) -> int:
    place = {"partition_index": 0, "committed_offset": offset}
    asked = {
        "group_id": group,
        "member_id": member_id,
        "generation_id_or_member_epoch": epoch,
        "topics": [{"name": "orders", "partitions": [place]}],
    }
    code: int = raw.ask(OFFSET_COMMIT, 9, asked)["topics"][0]["partitions"][0]["error_code"]
    return code


def topic_id(raw: RawKafka, topic: str) -> bytes:
    (found,) = raw.ask(METADATA, 12, {"topics": [{"name": topic}]})["topics"]
    return bytes(found["topic_id"])


def test_a_topic_is_found_by_its_id(raw: RawKafka) -> None:
    mine = topic_id(raw, "orders")
    (found,) = raw.ask(METADATA, 12, {"topics": [{"topic_id": mine, "name": None}]})["topics"]
    assert (found["name"], len(found["partitions"])) == ("orders", 4)
    unknown = {"topics": [{"topic_id": b"x" * 16, "name": None}]}
    (missing,) = raw.ask(METADATA, 12, unknown)["topics"]
    assert missing["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID


def test_members_share_the_partitions(raw: RawKafka) -> None:
    first = join(raw, "share", "A")
    assert partitions(first) == [0, 1, 2, 3]
    assert first["heartbeat_interval_ms"] == 5000
    (topic,) = first["assignment"]["topic_partitions"]
    assert topic["topic_id"] == topic_id(raw, "orders")
    assert partitions(join(raw, "share", "B")) == []
    owned = [{"topic_id": topic["topic_id"], "partitions": [0, 1, 2, 3]}]
    shed = beat(raw, "share", "A", first["member_epoch"], topic_partitions=owned)
    assert partitions(shed) == [0, 1]
    owned = [{"topic_id": topic["topic_id"], "partitions": [0, 1]}]
    beat(raw, "share", "A", shed["member_epoch"], topic_partitions=owned)
    (found,) = raw.ask(DESCRIBE, 1, {"group_ids": ["share"]})["groups"]
    assert (found["group_state"], len(found["members"])) == ("Reconciling", 2)
    got = beat(raw, "share", "B", found["members"][1]["member_epoch"])
    assert partitions(got) == [2, 3]
    (found,) = raw.ask(DESCRIBE, 1, {"group_ids": ["share"]})["groups"]
    assert (found["group_state"], found["assignor_name"]) == ("Stable", "uniform")
    assert found["members"][0]["assignment"]["topic_partitions"][0]["topic_name"] == "orders"


def test_a_regular_expression_finds_topics(raw: RawKafka) -> None:
    create(raw, "seen-by-regex")
    answer = join(raw, "regex", "A", subscribed_topic_regex="seen-.*")
    assert partitions(answer) == [0, 1, 2, 3]
    refused = join(raw, "regex", "B", subscribed_topic_regex="(")
    assert refused["error_code"] == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_member_without_an_id_gets_one(raw: RawKafka) -> None:
    asked = {"group_id": "ids", "member_epoch": 0, "rebalance_timeout_ms": 1000}
    answer = raw.ask(BEAT, 0, {**asked, "subscribed_topic_names": ["orders"], "member_id": ""})
    assert answer["error_code"] == ErrorCode.NONE
    assert answer["member_id"].startswith("raw-")


def test_offsets_are_committed_with_the_members_epoch(raw: RawKafka) -> None:
    epoch = join(raw, "commits", "A")["member_epoch"]
    assert commit(raw, "commits", "A", epoch, 5) == ErrorCode.NONE
    assert commit(raw, "commits", "A", epoch - 1, 6) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(raw, "commits", "Z", epoch, 7) == ErrorCode.UNKNOWN_MEMBER_ID
    assert offset_of(raw, "commits") == 5


def test_the_two_kinds_of_groups_do_not_mix(raw: RawKafka) -> None:
    join(raw, "new-kind", "A")
    classic = {
        "group_id": "new-kind",
        "session_timeout_ms": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    refused = raw.ask(JOIN_GROUP, 3, classic)
    assert refused["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert raw.ask(JOIN_GROUP, 3, {**classic, "group_id": "old-kind"})["error_code"] == 0
    assert join(raw, "old-kind", "A")["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    groups = raw.ask(LIST_GROUPS, 5, {"states_filter": [], "types_filter": ["consumer"]})["groups"]
    listed = {each["group_id"] for each in groups}
    assert "new-kind" in listed and "old-kind" not in listed
    deleted = raw.ask(DELETE_GROUPS, 2, {"groups_names": ["new-kind"]})["results"]
    assert deleted[0]["error_code"] == ErrorCode.NON_EMPTY_GROUP
    assert beat(raw, "new-kind", "A", LEAVES)["error_code"] == ErrorCode.NONE
    assert raw.ask(JOIN_GROUP, 3, classic)["error_code"] == ErrorCode.NONE


def test_a_silent_member_is_gone_by_the_brokers_clock() -> None:
    with broker(kafka=True) as running, RawKafka(running.kafka_bootstrap) as raw:
        create(raw)
        epoch = join(raw, "g", "A")["member_epoch"]
        running.clock.advance("40s")
        assert beat(raw, "g", "A", epoch)["error_code"] == ErrorCode.NONE
        running.clock.advance("46s")
        assert beat(raw, "g", "A", epoch)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


def test_after_a_crash_members_join_again_with_a_higher_epoch(tmp_path: Path) -> None:
    with broker(data_dir=tmp_path, kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw)
            epoch = join(raw, "g", "A")["member_epoch"]
            assert commit(raw, "g", "A", epoch, 5) == ErrorCode.NONE
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert beat(raw, "g", "A", epoch)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
            again = join(raw, "g", "A")
            assert again["member_epoch"] > epoch
            assert commit(raw, "g", "A", epoch, 6) == ErrorCode.STALE_MEMBER_EPOCH
            assert offset_of(raw, "g") == 5


def test_what_a_stranger_subscribes_to_does_not_rebalance_the_group(raw: RawKafka) -> None:
    """It was removed, and does not know it yet."""
    create(raw, "strange")
    epoch = join(raw, "strangers", "A")["member_epoch"]
    for member_epoch in (3, LEAVES):
        gone = beat(raw, "strangers", "gone", member_epoch, subscribed_topic_names=["strange"])
        assert gone["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
        assert beat(raw, "strangers", "A", epoch)["member_epoch"] == epoch


def test_a_member_is_described_with_the_names_and_the_regex_that_it_said(raw: RawKafka) -> None:
    create(raw, "found-by-it")
    for group, names in (("both", ["orders"]), ("one", [])):
        said = {"subscribed_topic_names": names, "subscribed_topic_regex": "found-.*"}
        assert join(raw, group, "A", **said)["error_code"] == ErrorCode.NONE
        (found,) = raw.ask(DESCRIBE, 1, {"group_ids": [group]})["groups"]
        (member,) = found["members"]
        assert member["subscribed_topic_names"] == (names or ["found-by-it"])
        assert member["subscribed_topic_regex"] == "found-.*"
