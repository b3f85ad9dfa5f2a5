"""What a log keeps of groups and offsets is bounded, for each user and in total."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest
from raw_kafka import RawKafka

from pybroker.kafka.coordinator.limits import CoordinatorLimits
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.offsets.logs import topic_of_group
from pybroker.testing import RunningBroker, broker

OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, SYNC_GROUP, LEAVE_GROUP = 8, 9, 11, 14, 13
GROUP_HEARTBEAT, SHARE_HEARTBEAT = 68, 76
HANDSHAKE, CREATE_TOPICS, AUTHENTICATE, DELETE_GROUPS = 17, 19, 36, 42
FULL: Final = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
NONE: Final = ErrorCode.NONE
TOPIC, PARTITIONS = "orders", 30
USERS: Final = "data:,ada:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\nbob:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ="
OFFSET_BYTES: Final = 250 + len(TOPIC)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningBroker]:
    """A user has room for ten offsets in a log, all users for fifteen."""
    limits = CoordinatorLimits(user_log_bytes=10 * OFFSET_BYTES, max_log_bytes=15 * OFFSET_BYTES)
    monkeypatch.setattr(CoordinatorLimits, "of", lambda _: limits)
    logins = {"authentication_providers": ("basic",), "basic_auth_conf": USERS}
    with broker(kafka=True, authentication_enabled=True, **logins) as started:
        with connected(started, "ada") as ada:
            topic = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1}
            ada.ask(CREATE_TOPICS, 4, {"topics": [topic], "timeout_ms": 30_000})
        yield started


@contextmanager
def connected(running: RunningBroker, user: str) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as raw:
        raw.ask(HANDSHAKE, 1, {"mechanism": "PLAIN"})
        said = raw.ask(AUTHENTICATE, 1, {"auth_bytes": f"\0{user}\0secret".encode()})
        assert said["error_code"] == NONE
        yield raw


def neighbours() -> Iterator[str]:
    """Groups in one log."""
    names = (f"group-{number}" for number in range(10_000))
    return (each for each in names if topic_of_group(each) == topic_of_group("group-0"))


def committed(raw: RawKafka, group: str, partitions: Sequence[int]) -> set[int]:
    """The error codes."""
    parts = [{"partition_index": each, "committed_offset": 0} for each in partitions]
    body: dict[str, Any] = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": TOPIC, "partitions": parts}],
    }
    (topic,) = raw.ask(OFFSET_COMMIT, 7, body)["topics"]
    return {each["error_code"] for each in topic["partitions"]}


def test_one_user_does_not_take_all(running: RunningBroker) -> None:
    groups = neighbours()
    with connected(running, "ada") as ada, connected(running, "bob") as bob:
        first, second = next(groups), next(groups)
        assert committed(ada, first, range(8)) == {NONE}
        assert committed(ada, second, range(8)) == {FULL}
        assert committed(ada, first, range(8, 11)) == {FULL}
        assert committed(bob, next(groups), range(5)) == {NONE}
        assert committed(bob, next(groups), range(5)) == {FULL}  # of all users


def test_what_takes_no_more_is_never_refused(running: RunningBroker) -> None:
    with connected(running, "ada") as ada:
        assert committed(ada, "g", range(10)) == {NONE}
        assert committed(ada, "g", range(10)) == {NONE}


def test_a_group_counts_for_who_made_it(running: RunningBroker) -> None:
    """Whoever commits in it, and after a restart."""
    groups = neighbours()
    with connected(running, "ada") as ada, connected(running, "bob") as bob:
        first = next(groups)
        assert committed(ada, first, range(5)) == {NONE}
        assert committed(bob, first, range(5, 10)) == {NONE}
    running.kill_and_restart()
    with connected(running, "ada") as ada, connected(running, "bob") as bob:
        assert committed(ada, next(groups), [0]) == {FULL}
        assert committed(bob, next(groups), range(5)) == {NONE}


def test_a_deleted_group_makes_room_for_its_user(running: RunningBroker) -> None:
    groups = neighbours()
    with connected(running, "ada") as ada, connected(running, "bob") as bob:
        first = next(groups)
        assert committed(ada, first, range(10)) == {NONE}
        (gone,) = ada.ask(DELETE_GROUPS, 1, {"groups_names": [first]})["results"]
        assert gone["error_code"] == NONE
        assert committed(bob, first, range(10)) == {NONE}
        assert committed(ada, next(groups), range(5)) == {NONE}


def test_groups_that_were_left_count_for_who_joined_first(running: RunningBroker) -> None:
    """Without an offset, too."""
    codes: list[int] = []
    with connected(running, "ada") as ada, connected(running, "bob") as bob:
        groups = neighbours()
        for _ in range(10):
            codes.append(_joins_and_leaves(ada, next(groups)))
        assert codes[0] == NONE
        assert codes[-1] == FULL
        assert _joins_and_leaves(bob, next(groups)) == NONE


@pytest.mark.parametrize(
    "beat", [(GROUP_HEARTBEAT, {"topic_partitions": []}), (SHARE_HEARTBEAT, {})]
)
def test_members_come_back_though_there_is_no_room_for_another_group(
    running: RunningBroker, beat: tuple[int, dict[str, Any]]
) -> None:
    key, more = beat
    more = more | {"subscribed_topic_names": [TOPIC], "rebalance_timeout_ms": 60_000}
    groups = neighbours()
    with connected(running, "ada") as ada:

        def joins(group: str) -> int:
            who = {"group_id": group, "member_id": "A"}
            error = ada.ask(key, 1, who | more | {"member_epoch": 0})["error_code"]
            ada.ask(key, 1, who | {"member_epoch": -1})
            return int(error)

        first = next(groups)
        assert joins(first) == NONE
        others = [joins(next(groups)) for _ in range(3)]
        assert (others[0], others[-1]) == (NONE, FULL)
        assert joins(first) == NONE


def _joins_and_leaves(raw: RawKafka, group: str) -> int:
    protocols = [{"name": "range", "metadata": b""}]
    member = raw.ask(
        JOIN_GROUP,
        3,
        {
            "group_id": group,
            "session_timeout_ms": 60_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": protocols,
        },
    )
    if member["error_code"] == NONE:
        who = {"group_id": group, "member_id": member["member_id"]}
        assigned = {"assignments": [], "generation_id": member["generation_id"]}
        raw.ask(SYNC_GROUP, 3, who | assigned)
        raw.ask(LEAVE_GROUP, 0, who)
    return int(member["error_code"])
