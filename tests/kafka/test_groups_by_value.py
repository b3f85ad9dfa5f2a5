"""What is known of groups, driven with values: what expires, what they read, what they cost."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from virtual_loop import run_virtually

from pybroker.base.errors import AuthorizationError, ServiceNotReady
from pybroker.broker.namespaces.tenants import Conflict, NotFound
from pybroker.kafka.coordinator.consumer_groups import ConsumerGroups
from pybroker.kafka.coordinator.describing import read_by
from pybroker.kafka.coordinator.expiry import expired
from pybroker.kafka.coordinator.shard import Shard
from pybroker.kafka.coordinator.topic_regexes import FRESH_S, TopicRegexes
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.for_admin import KafkaForAdmin, _errors
from pybroker.kafka.groups.classic_group import ClassicGroup
from pybroker.kafka.groups.consumer_group import ConsumerLimits
from pybroker.kafka.groups.consumer_protocol import topics_of
from pybroker.kafka.groups.joining import join
from pybroker.kafka.groups.share_group import ShareGroup
from pybroker.kafka.groups.values import (
    GroupKind,
    GroupLimits,
    JoinRequest,
    Protocol,
    StoredGroup,
    StoredMember,
    Synced,
    SyncRequest,
    text_of,
)
from pybroker.kafka.offsets.records import (
    CommitRecord,
    Committed,
    GoneRecord,
    GroupRecord,
    OwnerRecord,
    ProducerRecord,
    RemoveRecord,
    TopicPartition,
)
from pybroker.kafka.offsets.state import OffsetsState, group_cost_bytes
from pybroker.kafka.transactions.values import ProducerKey, StoredProducer
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def subscription(*topics: str) -> bytes:
    """What consumers write about themselves, in version 0."""
    named = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + named


# -- which offsets expire


def state_of(group: StoredGroup | None, **committed_ms: int) -> OffsetsState:
    state = OffsetsState()
    if group is not None:
        state.apply(GroupRecord("g", group))
    for order, (topic, at_ms) in enumerate(committed_ms.items()):
        offset = Committed(1, -1, "", at_ms, order)
        state.apply(CommitRecord("g", ((TopicPartition(topic, 0), offset),), None))
    return state


def consumers(*topics: str, since_ms: int = 0, protocol_type: str = "consumer") -> StoredGroup:
    member = StoredMember("m", None, "", "", 10_000, 10_000, subscription(*topics), b"")
    return StoredGroup(1, protocol_type, "range", "m", (member,), since_ms)


NOBODY = StoredGroup(1, "consumer", "", "", (), 100)


def test_offsets_expire_of_topics_that_no_member_reads() -> None:
    state = state_of(consumers("a"), a=0, b=0)
    assert expired(state, "g", True, 1001, 1000) == RemoveRecord("g", (B,))
    assert expired(state, "g", True, 1000, 1000) is None
    assert expired(state, "g", True, 1001, 1000, frozenset({"b"})) == RemoveRecord("g", (A,))


def test_nothing_expires_of_members_that_do_not_say_what_they_read() -> None:
    state = state_of(consumers("a", protocol_type="connect"), a=0, b=0)
    assert expired(state, "g", True, 10_000, 1000) is None


def test_offsets_of_a_group_without_members_expire_after_its_last_one_left() -> None:
    state = state_of(NOBODY, a=0)
    assert expired(state, "g", False, 1100, 1000) is None
    assert expired(state, "g", False, 1101, 1000) == RemoveRecord("g", (A,))


def test_a_group_without_offsets_is_gone_in_time() -> None:
    state = state_of(NOBODY)
    assert expired(state, "g", False, 1100, 1000) is None
    assert expired(state, "g", False, 1101, 1000) == GoneRecord("g")
    assert expired(state, "g", True, 1101, 1000, frozenset()) is None


# -- what groups are said to read


def test_a_groups_topics_are_those_of_its_members() -> None:
    def read(stored: StoredGroup | None, beating: Any = None) -> frozenset[str]:
        shard: Any = SimpleNamespace(
            beating=lambda _: beating, log=SimpleNamespace(state=state_of(stored))
        )
        return read_by(shard, "g")

    beating = SimpleNamespace(topics=frozenset({"c"}))
    assert read(None) == frozenset()
    assert read(consumers("a", "b")) == {"a", "b"}
    assert read(StoredGroup(1, "consumer", "", "", (), 0, GroupKind.CONSUMER), beating) == {"c"}
    assert read(StoredGroup(1, "share", "", "", (), 0, GroupKind.SHARE), beating) == frozenset()


def test_a_subscription_is_read_or_unknown() -> None:
    assert topics_of(subscription("a", "", "bc")) == {"a", "", "bc"}
    assert topics_of(subscription("a") + b"user data") == {"a"}
    assert topics_of(subscription("a")[:-1]) is None
    assert topics_of(b"\0\0\0\0\0\1\xff\xff") is None
    assert topics_of(b"\0\0\0\0\0\1\0\1\xff") is None
    assert topics_of(b"\0") is None


def test_topics_by_a_regex_are_looked_for_again_after_ten_seconds() -> None:
    there, looks = ["abc", "b", "ac"], []

    async def topics() -> AsyncIterator[tuple[str, int]]:
        looks.append(1)
        for each in there:
            yield each, 1

    async def life() -> None:
        regexes = TopicRegexes()
        assert await regexes.matching("a.*", topics) == {"abc", "ac"}
        there.append("ad")
        assert await regexes.matching("a.*", topics) == {"abc", "ac"}
        assert len(looks) == 1
        await asyncio.sleep(FRESH_S)
        assert await regexes.matching("a.*", topics) == {"abc", "ac", "ad"}
        with pytest.raises(KafkaError) as refused:
            await regexes.matching("(", topics)
        assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION

    run_virtually(life())


def test_a_share_group_forgets_topics_that_are_gone() -> None:
    group = ShareGroup("g", ConsumerLimits(), 0, text_of(frozenset({"a", "b"})))
    assert group.known_topics == {"a", "b"}
    assert not group.forgets({}) and not group.forgets({"a": 1, "c": 0})
    assert group.forgets({"a": 1, "b": 0})
    group.forget_gone({"a": 1, "b": 0})
    assert group.known_topics == {"a"}


def test_so_many_topics_are_kept_of_regexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pybroker.kafka.coordinator.topic_regexes._MOST_TOPICS", 5)

    async def topics() -> AsyncIterator[tuple[str, int]]:
        for each in ("a1", "a2", "b1", "b2", "c1", "c2"):
            yield each, 1

    async def life() -> None:
        regexes = TopicRegexes()
        for regex, kept in (("a.", 1), ("b.", 2), ("c.", 1), (".1", 2)):
            await regexes.matching(regex, topics)
            assert len(regexes._found) == kept

    run_virtually(life())


# -- what a log of groups takes


def test_the_records_of_a_log_are_groups_owners_producers_and_offsets() -> None:
    state = state_of(consumers("a"), a=0, b=0)
    state.apply(OwnerRecord("g", "ada"))
    for name in ("p", "q", "r"):
        stored = StoredProducer(ProducerKey(7, 3), 2, 60_000)
        state.apply(ProducerRecord(TransactionalId("ada", name), stored))
    assert state.record_count == 2 + 1 + 1 + 3


def test_the_longer_what_a_group_says_the_more_it_costs() -> None:
    assert group_cost_bytes("group", NOBODY) == group_cost_bytes("g", NOBODY) + 4
    one, two = consumers("a"), consumers("aa")
    assert group_cost_bytes("g", two) == group_cost_bytes("g", one) + 1
    assert group_cost_bytes("g", one) > group_cost_bytes("g", NOBODY) + len(subscription("a"))


# -- offsets that other clients commit in transactions


def test_only_who_may_consume_with_the_group_commits_its_offsets() -> None:
    class Authorizer:
        may_use, needed = True, list[str]()

        def may_use_group(self, *_: object) -> bool:
            return self.may_use

        def require(self, identity: object, need: object, target: Any, what: str) -> None:
            self.needed.append(what)

    authorizer = Authorizer()
    names: Any = SimpleNamespace(namespace_name="n")
    services: Any = SimpleNamespace(authorizer=authorizer, names=names)
    groups, ada = KafkaForAdmin(services), SimpleNamespace(acting="ada", roles=("ada",))
    groups._check_permitted(ada, "g", {})  # type: ignore[arg-type]
    groups._check_permitted(None, "g", {})
    authorizer.may_use = False
    groups._check_permitted(None, "g", {})
    with pytest.raises(AuthorizationError):
        groups._check_permitted(ada, "g", {})  # type: ignore[arg-type]
    services.authorizer = None
    groups._check_permitted(ada, "g", {})  # type: ignore[arg-type]


# -- who may join


def test_who_joins_a_group_that_is_there_needs_no_room_for_another() -> None:
    shard: Any = Shard.__new__(Shard)
    asked: list[str] = []
    shard.check_room = lambda group_id, user: asked.append(user)
    shard.consumers = SimpleNamespace(groups={"c": SimpleNamespace(kind=GroupKind.CONSUMER)})
    shard.shares = SimpleNamespace(groups={"s": SimpleNamespace(kind=GroupKind.SHARE)})
    shard.groups = {"empty": ClassicGroup("empty", GroupLimits(), 0)}
    shard.log = SimpleNamespace(state=SimpleNamespace(groups={"stored": NOBODY}))
    for group_id in ("c", "empty", "stored"):
        shard.check_joins(group_id, GroupKind.CONSUMER, "ada")
    assert not asked
    shard.check_joins("new", GroupKind.CONSUMER, "ada")
    assert asked == ["ada"]
    for group_id, kind in (("c", GroupKind.SHARE), ("s", GroupKind.CONSUMER)):
        with pytest.raises(KafkaError) as refused:
            shard.check_joins(group_id, kind, "ada")
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    request = JoinRequest("", "m", "consumer", (Protocol("range", b""),), 10_000, 60_000)
    join(shard.groups["empty"], request, object(), 0)
    with pytest.raises(KafkaError, match="members with group"):
        shard.check_joins("empty", GroupKind.CONSUMER, "ada")


def test_the_clock_of_groups_counts_milliseconds() -> None:
    clock: Any = SimpleNamespace(monotonic_s=lambda: 20.0)
    shard: Any = Shard.__new__(Shard)
    shard._clock = clock
    nothing: Any = None
    groups = ConsumerGroups(nothing, nothing, clock, nothing)
    assert shard.now_ms() == groups._now_ms() == 20_000


def test_who_joins_again_while_it_waits_for_its_assignment_is_told_at_once() -> None:
    group = ClassicGroup("g", GroupLimits(initial_rebalance_delay_ms=0), 0)
    asked = JoinRequest("", "m", "consumer", (Protocol("range", b""),), 10_000, 60_000)
    other = replace(asked, fresh_id="n")
    join(group, asked, "m joins", 0)
    join(group, other, "n joins", 0)
    join(group, replace(asked, member_id="m"), "m joins again", 0)
    follower = next(each for each in ("m", "n") if each != group.leader)
    group.sync(SyncRequest(follower, group.generation, ()), "waits", 0)
    effects = join(group, replace(asked, member_id=follower), "later", 0)
    told = [(each.waiter, each.answer.error) for each in effects if isinstance(each, Synced)]
    assert told == [("waits", ErrorCode.REBALANCE_IN_PROGRESS)]


# -- the admin API


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.NOT_COORDINATOR, ServiceNotReady),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ServiceNotReady),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ServiceNotReady),
        (ErrorCode.GROUP_ID_NOT_FOUND, NotFound),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NotFound),
        (ErrorCode.NON_EMPTY_GROUP, Conflict),
    ],
)
def test_the_admin_api_has_its_own_errors(code: ErrorCode, error: type[Exception]) -> None:
    with pytest.raises(error, match="this is why"), _errors():
        raise KafkaError(code, "this is why")
    with _errors():
        pass
