"""Groups over the wire: members, generations, offsets, and a broker that stops."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from raw_kafka import RawKafka

from pybroker.kafka.errors import ErrorCode
from pybroker.testing import RunningBroker, broker

OFFSET_COMMIT, OFFSET_FETCH = 8, 9
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE = 15, 16, 42, 47
METADATA, DELETE_TOPICS = 3, 20
# What consumers write: version 0, topics ["orders"], no user data.
SUBSCRIPTION = b"\0\0\0\0\0\1\0\6orders\0\0\0\0"


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        with RawKafka(started.kafka_bootstrap) as raw:
            create(raw, "orders")
        yield started


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


def create(raw: RawKafka, topic: str) -> None:
    raw.ask(METADATA, 9, {"topics": [{"name": topic}], "allow_auto_topic_creation": True})


def join_body(group: str, member_id: str = "", **more: Any) -> Mapping[str, Any]:
    return {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        **more,
    }


def join(raw: RawKafka, group: str, member_id: str = "", **more: Any) -> dict[str, Any]:
    return raw.ask(JOIN_GROUP, 9, join_body(group, member_id, **more))


def with_id(raw: RawKafka, group: str) -> str:
    """The id that a new member gets."""
    answer = join(raw, group)
    assert answer["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
    member_id: str = answer["member_id"]
    return member_id


def sync(raw: RawKafka, joined: Mapping[str, Any], group: str, **assigned: bytes) -> dict[str, Any]:
    body = {
        "group_id": group,
        "generation_id": joined["generation_id"],
        "member_id": joined["member_id"],
        "assignments": [{"member_id": who, "assignment": what} for who, what in assigned.items()],
    }
    return raw.ask(SYNC_GROUP, 5, body)


def alone(raw: RawKafka, group: str) -> dict[str, Any]:
    """Joins as the only member, with an assignment."""
    joined = join(raw, group, with_id(raw, group))
    assert joined["leader"] == joined["member_id"]
    synced = sync(raw, joined, group, **{joined["member_id"]: b"all"})
    assert synced["assignment"] == b"all"
    return joined


def beat(raw: RawKafka, joined: Mapping[str, Any], group: str) -> int:
    body = {
        "group_id": group,
        "generation_id": joined["generation_id"],
        "member_id": joined["member_id"],
    }
    code: int = raw.ask(HEARTBEAT, 4, body)["error_code"]
    return code


def commit(
    raw: RawKafka, group: str, offset: int, member: Mapping[str, Any] | None = None, **more: Any
) -> int:
    """Commits on partition 0 of `orders`."""
    place = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "", **more}
    body: dict[str, Any] = {
        "group_id": group,
        "topics": [{"name": "orders", "partitions": [place]}],
    }
    if member is not None:
        body["member_id"] = member["member_id"]
        body["generation_id_or_member_epoch"] = member["generation_id"]
    code: int = raw.ask(OFFSET_COMMIT, 8, body)["topics"][0]["partitions"][0]["error_code"]
    return code


def committed(raw: RawKafka, group: str) -> int:
    asked = {"group_id": group, "topics": [{"name": "orders", "partition_indexes": [0]}]}
    (found,) = raw.ask(OFFSET_FETCH, 8, {"groups": [asked], "require_stable": True})["groups"]
    offset: int = found["topics"][0]["partitions"][0]["committed_offset"]
    return offset


def described(raw: RawKafka, group: str) -> dict[str, Any]:
    (found,) = raw.ask(DESCRIBE_GROUPS, 5, {"groups": [group]})["groups"]
    group_found: dict[str, Any] = found
    return group_found


def test_two_members_share_what_the_leader_assigns(running: RunningBroker, raw: RawKafka) -> None:
    first = alone(raw, "two")
    with RawKafka(running.kafka_bootstrap) as other:
        other.send(JOIN_GROUP, 9, join_body("two", with_id(other, "two")))
        running.wait_until(lambda: beat(raw, first, "two") == ErrorCode.REBALANCE_IN_PROGRESS)
        first = join(raw, "two", first["member_id"])
        second = other.receive()
        assert (first["generation_id"], second["generation_id"]) == (2, 2)
        members = [each["member_id"] for each in first["members"]]
        assert members == [first["member_id"], second["member_id"]]
        assert second["members"] == []
        sync_second = {
            "group_id": "two",
            "generation_id": 2,
            "member_id": second["member_id"],
            "assignments": [],
        }
        other.send(SYNC_GROUP, 5, sync_second)
        synced = sync(raw, first, "two", **{members[0]: b"half", members[1]: b"rest"})
        assert synced["assignment"] == b"half"
        assert other.receive()["assignment"] == b"rest"
        left = {"group_id": "two", "members": [{"member_id": second["member_id"]}]}
        assert other.ask(LEAVE_GROUP, 5, left)["members"][0]["error_code"] == ErrorCode.NONE
        assert beat(raw, first, "two") == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_and_leaves_in_each_version(raw: RawKafka, version: int) -> None:
    group = f"version-{version}"
    member_id = with_id(raw, group) if version >= 4 else ""
    joined = raw.ask(JOIN_GROUP, version, join_body(group, member_id))
    assert (joined["error_code"], joined["generation_id"]) == (ErrorCode.NONE, 1)
    assert joined["protocol_name"] == "range"
    assert [each["metadata"] for each in joined["members"]] == [SUBSCRIPTION]
    synced = sync(raw, joined, group, **{joined["member_id"]: b"x"})
    assert synced["assignment"] == b"x"
    member = {"member_id": joined["member_id"]}
    left = raw.ask(LEAVE_GROUP, min(version, 5), {"group_id": group, **member, "members": [member]})
    assert left["error_code"] == ErrorCode.NONE
    assert described(raw, group)["group_state"] == "Empty"


def test_a_group_without_an_id_is_refused(raw: RawKafka) -> None:
    assert join(raw, "")["error_code"] == ErrorCode.INVALID_GROUP_ID
    assert join(raw, "x" * 1025)["error_code"] == ErrorCode.INVALID_GROUP_ID


def test_strangers_are_told_so(raw: RawKafka) -> None:
    stranger = {"member_id": "nobody", "generation_id": 1}
    assert join(raw, "none", "nobody")["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(raw, stranger, "none") == ErrorCode.UNKNOWN_MEMBER_ID
    assert sync(raw, stranger, "none")["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(raw, "none", 1, stranger) == ErrorCode.ILLEGAL_GENERATION
    alone(raw, "some")
    assert sync(raw, stranger, "some", x=b"x")["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(raw, "some", 1, stranger) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(raw, "some", 1) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(1, 10))
def test_offsets_are_fetched_in_each_version(raw: RawKafka, version: int) -> None:
    group = f"offsets-{version}"
    assert commit(raw, group, 41, committed_metadata="mine", committed_leader_epoch=3) == 0
    topics = [{"name": "orders", "partition_indexes": [0, 1]}]
    asked = {"group_id": group, "topics": topics}
    answer = raw.ask(OFFSET_FETCH, version, {**asked, "groups": [asked]})
    (topic,) = (answer["groups"][0] if version >= 8 else answer)["topics"]
    there, missing = topic["partitions"]
    assert (there["committed_offset"], there["metadata"]) == (41, "mine")
    assert there["committed_leader_epoch"] == (3 if version >= 5 else -1)
    assert (missing["committed_offset"], missing["error_code"]) == (-1, ErrorCode.NONE)


def test_all_offsets_of_a_group_are_fetched_without_naming_them(raw: RawKafka) -> None:
    commit(raw, "all", 5)
    answer = raw.ask(OFFSET_FETCH, 5, {"group_id": "all", "topics": None})
    assert [each["name"] for each in answer["topics"]] == ["orders"]


def test_offsets_that_cannot_be_kept_are_refused(raw: RawKafka) -> None:
    assert commit(raw, "g", 1, committed_metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(raw, "g", 1, partition_index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert committed(raw, "g") == -1


def test_a_commit_of_an_old_generation_is_refused(raw: RawKafka) -> None:
    first = alone(raw, "old")
    again = join(raw, "old", first["member_id"])
    assert again["generation_id"] == 2
    assert commit(raw, "old", 1, first) == ErrorCode.ILLEGAL_GENERATION
    assert commit(raw, "old", 1, again) == ErrorCode.REBALANCE_IN_PROGRESS
    sync(raw, again, "old", **{again["member_id"]: b"x"})
    assert commit(raw, "old", 1, again) == ErrorCode.NONE


def test_groups_are_listed_and_described(raw: RawKafka) -> None:
    joined = alone(raw, "shown")
    commit(raw, "only-offsets", 1)
    found = described(raw, "shown")
    assert (found["group_state"], found["protocol_data"]) == ("Stable", "range")
    (member,) = found["members"]
    assert (member["member_id"], member["client_id"]) == (joined["member_id"], "raw")
    assert member["client_host"] == "/127.0.0.1"
    assert (member["member_metadata"], member["member_assignment"]) == (SUBSCRIPTION, b"all")
    assert described(raw, "nobody's")["group_state"] == "Dead"
    late = raw.ask(DESCRIBE_GROUPS, 6, {"groups": ["nobody's"]})["groups"][0]
    assert late["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND

    def listed(**filters: list[str]) -> dict[str, str]:
        answer = raw.ask(LIST_GROUPS, 5, {"states_filter": [], "types_filter": [], **filters})
        return {each["group_id"]: each["group_state"] for each in answer["groups"]}

    assert listed().items() >= {"shown": "Stable", "only-offsets": "Empty"}.items()
    assert "shown" not in listed(states_filter=["empty"])
    assert "shown" in listed(types_filter=["Classic"])
    assert listed(types_filter=["consumer"]) == {}


def test_only_groups_without_members_are_deleted(raw: RawKafka) -> None:
    alone(raw, "busy")
    commit(raw, "idle", 1)
    asked = {"groups_names": ["busy", "idle", "nobody's"]}
    errors = [each["error_code"] for each in raw.ask(DELETE_GROUPS, 2, asked)["results"]]
    assert errors == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert committed(raw, "idle") == -1


def test_offsets_of_topics_that_members_read_are_not_deleted(raw: RawKafka) -> None:
    commit(raw, "reads", 1)
    asked = {"topics": [{"name": "orders", "partitions": [{"partition_index": 0}]}]}

    def delete(group: str) -> tuple[int, list[int]]:
        answer = raw.ask(OFFSET_DELETE, 0, {"group_id": group, **asked})
        partitions = [part for topic in answer["topics"] for part in topic["partitions"]]
        return answer["error_code"], [each["error_code"] for each in partitions]

    joined = alone(raw, "reads")
    assert delete("reads") == (0, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
    raw.ask(LEAVE_GROUP, 5, {"group_id": "reads", "members": [{"member_id": joined["member_id"]}]})
    assert delete("reads") == (0, [ErrorCode.NONE])
    assert committed(raw, "reads") == -1
    assert delete("nobody's")[0] == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_topic_of_a_deleted_ones_name_begins_without_offsets(raw: RawKafka) -> None:
    create(raw, "short-lived")
    place = {"partition_index": 0, "committed_offset": 100}
    topics = [{"name": "short-lived", "partitions": [place]}]
    raw.ask(OFFSET_COMMIT, 8, {"group_id": "outlives", "topics": topics})
    commit(raw, "outlives", 5)
    raw.ask(DELETE_TOPICS, 5, {"topic_names": ["short-lived"], "timeout_ms": 30_000})
    create(raw, "short-lived")
    found = raw.ask(OFFSET_FETCH, 5, {"group_id": "outlives", "topics": None})["topics"]
    assert [each["name"] for each in found] == ["orders"]


def test_a_member_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    with broker(data_dir=tmp_path, kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw, "orders")
            joined = alone(raw, "g")
            commit(raw, "g", 17, joined)
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert beat(raw, joined, "g") == ErrorCode.NONE
            assert committed(raw, "g") == 17
            assert described(raw, "g")["group_state"] == "Stable"
        running.restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert committed(raw, "g") == 17


def test_a_session_ends_by_the_brokers_clock() -> None:
    with broker(kafka=True) as running, RawKafka(running.kafka_bootstrap) as raw:
        joined = alone(raw, "g")
        running.clock.advance("9s")
        assert beat(raw, joined, "g") == ErrorCode.NONE
        running.clock.advance("11s")
        assert beat(raw, joined, "g") == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_broker_stops_although_members_wait() -> None:
    settings = {"kafka_group_initial_rebalance_delay_ms": 3_600_000}
    with broker(kafka=True, **settings) as running:
        raw = RawKafka(running.kafka_bootstrap)
        raw.send(JOIN_GROUP, 9, join_body("g", with_id(raw, "g"), rebalance_timeout_ms=3_600_000))
        running.wait_until(lambda: _state(running, "g") == "PreparingRebalance")
    assert raw.receive()["error_code"] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    raw.socket.close()


def _state(running: RunningBroker, group: str) -> str:
    with RawKafka(running.kafka_bootstrap) as raw:
        state: str = described(raw, group)["group_state"]
        return state
