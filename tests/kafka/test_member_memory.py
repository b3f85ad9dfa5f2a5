"""What the members of groups take in memory is bounded: by group, by user, and in total."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
from raw_kafka import RawKafka

from pybroker.kafka.coordinator.limits import CoordinatorLimits
from pybroker.kafka.coordinator.member_memory import MemberMemory
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.classic_group import ClassicGroup
from pybroker.kafka.groups.consumer_group import Beat, ConsumerGroup, ConsumerLimits
from pybroker.kafka.groups.joining import join
from pybroker.kafka.groups.members import growth_by
from pybroker.kafka.groups.values import GroupLimits, JoinRequest, Protocol, SyncRequest
from pybroker.testing import RunningBroker, broker

JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, DELETE_GROUPS, GROUP_HEARTBEAT = 11, 13, 14, 42, 68
FULL: Final = ErrorCode.GROUP_MAX_SIZE_REACHED
NONE: Final = ErrorCode.NONE
SMALL: Final = CoordinatorLimits(
    group_memory_bytes=40_000, user_memory_bytes=60_000, members_memory_bytes=80_000
)


# -- the bounds


async def checked(memory: MemberMemory, *what: Any) -> None:
    memory.check(*what)  # a refusal is logged, at most once in a while


def test_a_group_a_user_and_all_have_a_bound() -> None:
    memory = MemberMemory(SMALL)
    memory.put("a", {"ada": 20_000, "bob": 5_000})
    memory.put("b", {"ada": 20_000})
    memory.check("a", "bob", 10_000)
    for group, user, growth, whose in (
        ("a", "bob", 20_000, "'a'"),
        ("c", "ada", 20_000, "'ada'"),
        ("c", "bob", 35_000, "all groups"),
    ):
        with pytest.raises(KafkaError, match=f"The members of {whose} may take") as refused:
            asyncio.run(checked(memory, group, user, growth))
        assert refused.value.code is FULL


def test_what_takes_no_more_is_never_refused() -> None:
    memory = MemberMemory(SMALL)
    memory.put("a", {"ada": 200_000})
    memory.check("a", "ada", 0)


def test_a_group_that_is_gone_takes_nothing() -> None:
    memory = MemberMemory(SMALL)
    memory.put("a", {"ada": 20_000})
    memory.put("a", {"ada": 10_000, "bob": 10_000})
    memory.drop("a")
    memory.drop("a")
    assert memory.size_bytes == 0


def test_what_a_user_has_in_another_group_stays_counted() -> None:
    memory = MemberMemory(SMALL)
    memory.put("a", {"ada": 20_000})
    memory.put("b", {"ada": 10_000, "bob": 10_000})
    of_two = memory.size_bytes
    memory.drop("a")
    assert 20_000 < memory.size_bytes < of_two
    memory.drop("b")
    assert memory.size_bytes == 0 and not memory._of_user


def test_a_new_member_takes_memory_before_it_has_partitions() -> None:
    group = ConsumerGroup("g", ConsumerLimits(), 0)
    for name in ("m", "n"):
        before = group.changed_sizes() or {"ada": 0}
        join_beat = Beat(name, 0, None, 60_000, frozenset(), owned=frozenset(), user="ada")
        group.beat(join_beat, 0)
        after = group.changed_sizes()
        assert after is not None and after["ada"] > before["ada"]
        assert group.changed_sizes() is None


def test_a_new_member_grows_by_all_that_it_says() -> None:
    asked = request(1, "ada")
    assert asked.fresh_id == "m-1"
    longer = replace(asked, client_id="client", instance_id="inst", fresh_id="m-1111")
    assert growth_by(longer, None) == growth_by(asked, None) + 6 + 4 + 2 * 3
    assert growth_by(asked, None) > 1_000 + 200


# -- what a group counts


def request(number: int, user: str, size: int = 100) -> JoinRequest:
    protocols = (Protocol("range", b"m" * size),)
    name = f"m-{number}"
    return JoinRequest("", name, "consumer", protocols, 10_000, 60_000, user=user)


@pytest.mark.parametrize("seed", range(20))
def test_a_classic_group_counts_its_members_and_nobody_else(seed: int) -> None:
    rng, now_ms = random.Random(seed), 0
    group = ClassicGroup("g", GroupLimits(), now_ms)
    for number in range(60):
        asked = request(number, rng.choice(("ada", "bob")), rng.randrange(5_000))
        known = rng.choice([*group.members, *group.pending, ""])
        asked = replace(asked, member_id=known, needs_known_id=rng.random() < 0.5)
        join(group, asked, object(), now_ms)
        if group.members and rng.random() < 0.3:
            group.leave(rng.choice(list(group.members)), None, now_ms)
        if (leader := group.members.get(group.leader)) is not None and rng.random() < 0.5:
            assigned = tuple((each, b"a" * 100) for each in group.members)
            asked_for = SyncRequest(leader.member_id, group.generation, assigned)
            group.sync(asked_for, object(), now_ms)
        if rng.random() < 0.3:
            now_ms += rng.randrange(20_000)
            group.wake(now_ms)
        counted = sum(group.sizes.of_user.values())
        pending = sum(400 + len(each) for each in group.pending)
        assert counted == pending + sum(each.size_bytes for each in group.members.values())
    group.leave("", None, now_ms)
    for member_id in list(group.members):
        group.leave(member_id, None, now_ms)
    group.die(now_ms)
    assert not group.sizes.of_user


def test_who_joins_again_takes_no_more() -> None:
    group = ClassicGroup("g", GroupLimits(initial_rebalance_delay_ms=0), 0)
    static = replace(request(1, "ada"), instance_id="i")
    join(group, static, object(), 0)
    again = replace(request(2, "ada"), member_id="m-1", instance_id="i")
    successor = replace(request(3, "ada"), instance_id="i")
    assert growth_by(static, group.member_of(again)) == 0
    assert growth_by(successor, group.member_of(successor)) == 0
    assert (
        growth_by(request(4, "ada", 200), group.member_of(replace(again, member_id="m-1"))) == 100
    )
    assert group.member_of(request(5, "ada")) is None


def beat(name: str, topics: frozenset[str], user: str = "ada") -> Beat:
    return Beat(name, 0, None, 60_000, topics, named=frozenset(topics), user=user)


def test_members_with_the_same_subscription_share_it() -> None:
    group = ConsumerGroup("g", ConsumerLimits(), 0)
    names = [f"topic-{number}" for number in range(1_000)]
    first = beat("A", frozenset(names))
    assert group.growth_bytes(first) > 80_000
    group.beat(first, 0)
    one = sum((group.changed_sizes() or {}).values())
    assert one > 80_000
    for name in "BCD":
        again = beat(name, frozenset([*names]))
        assert group.growth_bytes(again) < 5_000
        group.beat(again, 0)
    assert sum((group.changed_sizes() or {}).values()) < one + 15_000
    held = {id(topics) for each in group.members.values() for topics in (each.topics, each.named)}
    assert len(held) == 1


def test_a_heartbeat_takes_no_more() -> None:
    group = ConsumerGroup("g", ConsumerLimits(), 0)
    joins = replace(beat("A", frozenset("t")), client_id="client", rack_id="rack", regex="t.*")
    group.beat(joins, 0)
    stays = Beat("A", group.members["A"].epoch, client_id="client", rack_id="rack", user="ada")
    assert group.growth_bytes(stays) == 0
    assert group.growth_bytes(replace(stays, regex="t.*")) == 0
    assert group.growth_bytes(replace(stays, regex="t.*|u.*")) == 4


def test_sizes_are_told_when_they_change() -> None:
    group = ConsumerGroup("g", ConsumerLimits(), 0)
    group.beat(beat("A", frozenset("t")), 0)
    assert group.changed_sizes() is not None
    group.beat(Beat("A", group.members["A"].epoch, user="ada"), 0)
    assert group.changed_sizes() is None
    group.beat(Beat("A", group.members["A"].epoch, topics=frozenset("tu")), 0)
    assert group.changed_sizes() is not None


def test_a_group_subscribes_to_a_limited_number_of_topics() -> None:
    group = ConsumerGroup("g", ConsumerLimits(max_topics=3), 0)
    group.beat(beat("A", frozenset("ab")), 0)
    group.beat(beat("B", frozenset("bc")), 0)
    with pytest.raises(KafkaError, match="3 topics") as refused:
        group.beat(beat("C", frozenset("d")), 0)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_the_partitions_of_topics_are_looked_at_now_and_then() -> None:
    group = ConsumerGroup("g", ConsumerLimits(), 0)
    joins = beat("A", frozenset("t"))
    assert group.looks_again(joins, 0)
    group.has_partitions({"t": 1})
    group.beat(joins, 0)
    stays = Beat("A", group.members["A"].epoch)
    assert not group.looks_again(stays, 999)
    assert group.looks_again(stays, 1_000)
    assert not group.looks_again(stays, 1_001)
    assert group.looks_again(replace(stays, topics=frozenset("tu")), 1_002)


# -- through the protocol


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True, kafka_group_initial_rebalance_delay_ms=0) as started:
        yield started


def memory_of(running: RunningBroker) -> MemberMemory:
    async def found(started: Any) -> MemberMemory:
        memory: MemberMemory = started._kafka.services.groups.memory
        return memory

    return running.call(found)


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    memory = memory_of(running)
    memory._limits = SMALL
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected
    memory._limits = CoordinatorLimits()


def joined(raw: RawKafka, group: str, size: int, version: int = 3) -> dict[str, Any]:
    return raw.ask(
        JOIN_GROUP,
        version,
        {
            "group_id": group,
            "session_timeout_ms": 60_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"m" * size}],
        },
    )


def test_a_member_that_is_too_large_does_not_join(raw: RawKafka) -> None:
    assert joined(raw, "large", 50_000)["error_code"] == FULL
    assert joined(raw, "large", 5_000)["error_code"] == NONE


def test_one_user_does_not_take_all(raw: RawKafka) -> None:
    answers = [joined(raw, f"many-{number}", 15_000) for number in range(6)]
    codes = [each["error_code"] for each in answers]
    assert NONE in codes
    assert codes[-1] == FULL
    for number, each in enumerate(answers):
        left = {"group_id": f"many-{number}", "member_id": each["member_id"]}
        raw.ask(LEAVE_GROUP, 0, left)
    assert joined(raw, "after", 15_000)["error_code"] == NONE


def test_ids_that_were_handed_out_count(raw: RawKafka) -> None:
    codes = [joined(raw, f"id-{number}", 10, version=5)["error_code"] for number in range(60)]
    assert codes[0] == ErrorCode.MEMBER_ID_REQUIRED
    assert codes[-1] == FULL


def test_a_leader_does_not_assign_without_bounds(running: RunningBroker) -> None:
    with RawKafka(running.kafka_bootstrap) as raw:
        member = joined(raw, "assigned", 10)
        memory = memory_of(running)
        memory._limits = SMALL
        body = {
            "group_id": "assigned",
            "generation_id": member["generation_id"],
            "member_id": member["member_id"],
            "assignments": [{"member_id": member["member_id"], "assignment": b"a" * 70_000}],
        }
        assert raw.ask(SYNC_GROUP, 3, body)["error_code"] == FULL
        memory._limits = CoordinatorLimits()
        assert raw.ask(SYNC_GROUP, 3, body)["error_code"] == NONE


def test_members_of_the_newer_protocol_count_too(running: RunningBroker) -> None:
    with RawKafka(running.kafka_bootstrap) as raw:
        memory = memory_of(running)
        memory._limits = SMALL
        body = {
            "group_id": "newer",
            "member_id": "m",
            "member_epoch": 0,
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [f"topic-{number}" for number in range(1_000)],
            "topic_partitions": [],
        }
        answer = raw.ask(GROUP_HEARTBEAT, 1, body)
        memory._limits = CoordinatorLimits()
        assert answer["error_code"] == FULL
        assert "use fewer members" in answer["error_message"]


def test_a_group_that_is_deleted_while_a_member_gets_its_id_can_be_joined(
    running: RunningBroker,
) -> None:
    with RawKafka(running.kafka_bootstrap) as raw:
        member = joined(raw, "deleted", 10)
        raw.ask(LEAVE_GROUP, 0, {"group_id": "deleted", "member_id": member["member_id"]})
        assert joined(raw, "deleted", 10, version=5)["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
        (gone,) = raw.ask(DELETE_GROUPS, 1, {"groups_names": ["deleted"]})["results"]
        assert gone["error_code"] == NONE
        assert joined(raw, "deleted", 10)["error_code"] == NONE
