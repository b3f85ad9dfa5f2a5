"""One request may name a hundred thousand things: other clients are served meanwhile."""

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest
from kafka_produce import fetch_body
from raw_kafka import RawKafka

from pybroker.base import runtime
from pybroker.kafka.codec.message_table import message_kinds
from pybroker.kafka.codec.messages import (
    Header,
    decode_request,
    encode_request,
    encode_response,
    encode_response_in_steps,
    read_header,
)
from pybroker.kafka.codec.primitives import Malformed
from pybroker.kafka.large_messages import decoded, encoded
from pybroker.kafka.pacing import paced
from pybroker.testing import RunningBroker, broker

MANY = 500
A_TURN = 50
NAMES = [f"n{at}" for at in range(MANY)]
BY_NAME = [{"name": name} for name in NAMES]


def partitions(topic: str, places: str, **fields: Any) -> dict[str, Any]:
    """A topic that has the same partition many times."""
    return {topic: "orders", places: [fields] * MANY}


FETCH = fetch_body("orders", 0)
FETCH["topics"] = [FETCH["topics"][0] | {"partitions": FETCH["topics"][0]["partitions"] * MANY}]
COMMIT = [{"partition_index": at, "committed_offset": 1} for at in range(MANY)]
CONFIGS = [{"resource_type": 2, "resource_name": name} for name in NAMES]
REQUESTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "Fetch": (1, 12, FETCH),
    "ListOffsets": (
        2,
        6,
        {"replica_id": -1, "topics": [partitions("name", "partitions", timestamp=-1)]},
    ),
    "Metadata": (3, 9, {"topics": BY_NAME, "allow_auto_topic_creation": False}),
    "OffsetCommit": (8, 7, {"group_id": "g", "topics": [{"name": "orders", "partitions": COMMIT}]}),
    "OffsetFetch": (9, 8, {"groups": [{"group_id": name, "topics": None} for name in NAMES]}),
    "OffsetFetch of one group": (
        9,
        8,
        {
            "groups": [
                {"group_id": "g", "topics": [n | {"partition_indexes": [0]} for n in BY_NAME]}
            ]
        },
    ),
    "OffsetDelete": (47, 0, {"group_id": "g", "topics": [partitions("name", "partitions")]}),
    "FindCoordinator": (10, 4, {"coordinator_keys": NAMES}),
    "LeaveGroup": (13, 4, {"group_id": "g", "members": [{"member_id": n} for n in NAMES]}),
    "SyncGroup": (14, 3, {"group_id": "g", "assignments": [{"member_id": n} for n in NAMES]}),
    "DescribeGroups": (15, 5, {"groups": NAMES}),
    "DeleteTopics": (20, 5, {"topic_names": NAMES}),
    "OffsetForLeaderEpoch": (
        23,
        4,
        {"replica_id": -1, "topics": [partitions("topic", "partitions", partition=0)]},
    ),
    "AddPartitionsToTxn": (
        24,
        3,
        {
            "v3_and_below_transactional_id": "t",
            "v3_and_below_topics": [{"name": "orders", "partitions": list(range(MANY))}],
        },
    ),
    "DescribeConfigs": (32, 4, {"resources": CONFIGS}),
    "CreatePartitions": (
        37,
        3,
        {"topics": [each | {"count": 2} for each in BY_NAME], "validate_only": True},
    ),
    "DeleteGroups": (42, 2, {"groups_names": NAMES}),
    "IncrementalAlterConfigs": (44, 1, {"resources": CONFIGS, "validate_only": True}),
    "DescribeUserScramCredentials": (50, 0, {"users": BY_NAME}),
    "AlterUserScramCredentials": (
        51,
        0,
        {"deletions": [each | {"mechanism": 1} for each in BY_NAME]},
    ),
    "DescribeProducers": (
        61,
        0,
        {"topics": [{"name": "orders", "partition_indexes": list(range(MANY))}]},
    ),
    "DescribeTransactions": (65, 0, {"transactional_ids": NAMES}),
    "ConsumerGroupDescribe": (69, 0, {"group_ids": NAMES}),
    "DescribeTopicPartitions": (75, 0, {"topics": BY_NAME, "response_partition_limit": 1}),
}


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        with RawKafka(started.kafka_bootstrap) as raw:
            raw.ask(3, 9, {"topics": [{"name": "orders"}], "allow_auto_topic_creation": True})
        yield started


@pytest.mark.parametrize("name", REQUESTS)
def test_others_are_served_while_many_things_are_looked_at(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    turns, own_turn = [], runtime.own_turn

    async def counted() -> None:
        turns.append(name)
        await own_turn()

    monkeypatch.setattr(runtime, "own_turn", counted)
    key, version, body = REQUESTS[name]
    with RawKafka(running.kafka_bootstrap) as raw:
        raw.ask(key, version, body)
    assert len(turns) >= MANY // A_TURN - 1


def test_configs_that_are_asked_for_twice_are_told_once(running: RunningBroker) -> None:
    """An answer is a hundred times as long as its question."""
    asked = [{"resource_type": 2, "resource_name": "orders", "configuration_keys": None}] * 9
    with RawKafka(running.kafka_bootstrap) as raw:
        (found,) = raw.ask(32, 4, {"resources": asked})["results"]
    assert found["configs"]


@pytest.mark.parametrize(("many", "code"), [(100, 79), (101, 10), (20_000, 10)])
def test_a_member_of_too_many_protocols_is_refused(
    running: RunningBroker, many: int, code: int
) -> None:
    """79: the member is given an id first. 10: MESSAGE_TOO_LARGE."""
    protocols = [{"name": f"p{at}", "metadata": b""} for at in range(many)]
    body = {"group_id": f"g{many}", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
    body |= {"protocol_type": "consumer", "protocols": protocols}
    with RawKafka(running.kafka_bootstrap) as raw:
        assert raw.ask(11, 5, body)["error_code"] == code


async def _looked_at(items: list[int]) -> list[int]:
    return [each async for each in paced(items)]


def test_few_things_take_no_turn() -> None:
    steps = _looked_at(list(range(A_TURN - 1)))
    with pytest.raises(StopIteration) as ended:
        steps.send(None)
    assert ended.value.value == list(range(A_TURN - 1))


MANY_NAMES = 20_000


def frame_of(key: int, version: int, body: dict[str, Any]) -> tuple[bytes, int]:
    """A request, and where its body begins."""
    frame = encode_request(Header(key, version, 1, "c"), body)
    return frame, read_header(frame, message_kinds()[key].is_flexible(version))[1]


async def turns_during(work: Awaitable[Any]) -> int:
    """How many turns others get until `work` is done. Runs with one task besides."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await work
    counting.cancel()
    return turns


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (3, 12, {"topics": [{"name": f"n{at}"} for at in range(MANY_NAMES)]}),
        (16, 5, {"states_filter": [f"n{at}" for at in range(MANY_NAMES)]}),
        (1, 18, fetch_body("orders", 0) | {"topics": [{"partitions": []}] * MANY_NAMES}),
        (0, 13, {"topic_data": [{"partition_data": []}] * MANY_NAMES}),
        (
            9,
            8,
            {"groups": [{"group_id": "g", "topics": [{"name": "t"} for _ in range(MANY_NAMES)]}]},
        ),
    ],
    ids=["Metadata", "ListGroups", "Fetch", "Produce", "OffsetFetch"],
)
def test_a_large_request_is_read_while_others_run(
    key: int, version: int, body: dict[str, Any]
) -> None:
    frame, at = frame_of(key, version, body)
    found: list[Any] = []

    async def read() -> None:
        found.append(await decoded(key, version, frame, at))

    assert asyncio.run(turns_during(read())) >= MANY_NAMES / 1000
    assert found == [decode_request(key, version, frame, at)]


def test_a_large_response_is_written_while_others_run() -> None:
    topic = {"error_code": 0, "name": "t", "is_internal": False, "partitions": []}
    body = {"brokers": [], "controller_id": 0, "topics": [topic] * MANY_NAMES}
    found: list[bytes] = []

    async def write() -> None:
        found.append(await encoded(3, 9, body))

    assert asyncio.run(turns_during(write())) >= MANY_NAMES / 1000
    assert found == [encode_response(3, 9, body)]


def test_the_last_step_of_a_large_response_joins_only_a_part_of_it() -> None:
    topic = {"error_code": 0, "name": "t", "is_internal": False, "partitions": []}
    steps = encode_response_in_steps(3, 9, {"brokers": [], "topics": [topic] * MANY_NAMES})
    assert max(len(steps.gi_frame.f_locals["parts"]) for _ in steps) < 6000


def test_a_request_of_too_many_elements_in_all_is_malformed() -> None:
    """Each array has fewer than are allowed of one."""
    topics = [{"name": "t", "partition_indexes": list(range(90_000))} for _ in range(3)]
    frame, at = frame_of(61, 0, {"topics": topics})
    with pytest.raises(Malformed, match="more than 250000 elements"):
        asyncio.run(decoded(61, 0, frame, at))


def test_a_request_of_many_tags_is_malformed() -> None:
    frame, at = frame_of(3, 12, {"topics": []})
    tags = b"\xa0\x8d\x06" + b"\x63\x00" * 100_000
    with pytest.raises(Malformed, match="100000 tags"):
        asyncio.run(decoded(3, 12, frame[:-1] + tags, at))
    with pytest.raises(Malformed, match="100000 tags"):
        read_header(frame[: at - 1] + tags + frame[at:], flexible=True)
