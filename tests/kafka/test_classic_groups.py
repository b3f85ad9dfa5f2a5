"""A classic group, driven with values: no broker, no clock."""

import random
from dataclasses import replace
from typing import Any

import pytest

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.groups.classic_group import ClassicGroup
from pybroker.kafka.groups.joining import join
from pybroker.kafka.groups.states import TRANSITIONS, GroupState
from pybroker.kafka.groups.values import (
    Effect,
    GroupLimits,
    JoinAnswer,
    Joined,
    JoinRequest,
    Protocol,
    Store,
    StoredGroup,
    SyncAnswer,
    Synced,
    SyncRequest,
)

LIMITS = GroupLimits(initial_rebalance_delay_ms=3000)
RANGE = Protocol("range", b"topics")
STICKY = Protocol("sticky", b"topics, owned")


class World:
    """A group with clients that are named by a letter; their waiters are their names."""

    def __init__(self, limits: GroupLimits = LIMITS) -> None:
        self.now_ms = 0
        self.group = ClassicGroup("g", limits, 0)
        self.joined: dict[str, JoinAnswer] = {}
        self.synced: dict[str, SyncAnswer] = {}
        self.stored: list[StoredGroup] = []

    def join(self, name: str, member_id: str = "", **more: Any) -> JoinAnswer | None:
        """The answer if it comes at once."""
        request = JoinRequest(member_id, f"{name}-id", "consumer", (RANGE,), 10_000, 60_000)
        self.joined.pop(name, None)
        self.take(join(self.group, replace(request, **more), name, self.now_ms))
        return self.joined.get(name)

    def sync(self, name: str, assignments: dict[str, bytes] | None = None) -> SyncAnswer | None:
        self.synced.pop(name, None)
        request = SyncRequest(
            self.joined[name].member_id,
            self.joined[name].generation,
            tuple((assignments or {}).items()),
        )
        self.take(self.group.sync(request, name, self.now_ms))
        return self.synced.get(name)

    def beat(self, name: str) -> ErrorCode:
        answer = self.joined[name]
        return self.group.heartbeat(answer.member_id, None, answer.generation, self.now_ms)

    def pass_ms(self, ms: int) -> None:
        """Time passes, with a wake-up whenever the group asks for one."""
        until = self.now_ms + ms
        while self.group.wake_ms <= until:
            self.now_ms = max(self.now_ms, int(self.group.wake_ms))
            self.take(self.group.wake(self.now_ms))
        self.now_ms = until

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Joined):
                self.joined[str(effect.waiter)] = effect.answer
            elif isinstance(effect, Synced):
                self.synced[str(effect.waiter)] = effect.answer
            else:
                self.stored.append(effect.group)

    def stable(self, *names: str, **more: Any) -> None:
        """All of `names` are members with an assignment each, "for A"."""
        for name in names:
            self.join(name, **more)
        self.pass_ms(6000)
        for name in names:
            self.beat(name)
        leader = next(name for name in names if self.joined[name].members)
        for name in names:
            if name != leader:
                assert self.sync(name) is None
        self.sync(leader, {self.joined[name].member_id: f"for {name}".encode() for name in names})
        assert self.group.state is GroupState.STABLE


def test_the_transitions_of_groups_are_total_and_only_dead_is_final() -> None:
    assert set(TRANSITIONS) == set(GroupState)
    assert [each for each in GroupState if not TRANSITIONS[each]] == [GroupState.DEAD]


def test_a_first_member_waits_for_others_and_leads() -> None:
    world = World()
    assert world.join("A") is None
    world.pass_ms(2999)
    assert "A" not in world.joined
    world.join("B")
    world.pass_ms(1)
    assert "A" not in world.joined  # B came during the delay, so it is extended
    world.pass_ms(3000)
    first, second = world.joined["A"], world.joined["B"]
    assert (first.leader, second.leader) == ("A-id", "A-id")
    assert [each.member_id for each in first.members] == ["A-id", "B-id"]
    assert second.members == ()
    assert (first.generation, first.protocol) == (1, "range")


def test_the_initial_delay_is_extended_to_the_rebalance_timeout_at_most() -> None:
    world = World()
    world.join("A", rebalance_timeout_ms=7000)
    for at in range(1, 4):
        world.pass_ms(2000)
        world.join(f"B{at}", rebalance_timeout_ms=7000)
    world.pass_ms(999)
    assert "A" not in world.joined
    world.pass_ms(1)
    assert len(world.joined["A"].members) == 4


def test_without_an_initial_delay_a_member_is_answered_at_once() -> None:
    world = World(GroupLimits(initial_rebalance_delay_ms=0))
    answer = world.join("A")
    assert answer is not None and answer.generation == 1


def test_every_member_gets_the_assignment_of_the_leader_after_the_record() -> None:
    world = World()
    world.stable("A", "B")
    assert (world.synced["A"].assignment, world.synced["B"].assignment) == (b"for A", b"for B")
    assert [each.assignment for each in world.stored[-1].members] == [b"for A", b"for B"]
    assert world.sync("B") == world.synced["B"]  # asked again


def test_a_record_precedes_the_answers_that_depend_on_it() -> None:
    world = World(GroupLimits(initial_rebalance_delay_ms=0))
    world.join("A")
    request = SyncRequest("A-id", 1, (("A-id", b"x"),))
    effects = world.group.sync(request, "A", 0)
    assert [type(each) for each in effects] == [Store, Synced]


def test_a_new_client_gets_an_id_before_it_may_wait() -> None:
    world = World()
    answer = world.join("A", needs_known_id=True)
    assert answer == JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, "A-id")
    assert world.join("A", "A-id", needs_known_id=True) is None
    world.pass_ms(3000)
    assert world.joined["A"].error is ErrorCode.NONE


def test_an_id_that_nobody_uses_is_forgotten_after_the_session_timeout() -> None:
    world = World()
    world.join("A", needs_known_id=True)
    world.pass_ms(10_000)
    late = world.join("A", "A-id")
    assert late is not None and late.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_ids_that_were_handed_out() -> None:
    world = World()
    world.stable("A")
    world.join("B", needs_known_id=True)
    world.join("A", "A-id", protocols=(STICKY, RANGE))
    assert "A" not in world.joined
    world.join("B", "B-id")
    assert len(world.joined["A"].members) == 2


def test_members_learn_of_a_rebalance_from_their_heartbeats() -> None:
    world = World()
    world.stable("A", "B")
    assert world.beat("A") is ErrorCode.NONE
    world.join("C")
    assert world.beat("A") is ErrorCode.REBALANCE_IN_PROGRESS
    world.join("A", "A-id")
    world.join("B", "B-id")
    assert {world.joined[each].generation for each in "ABC"} == {2}


def test_who_does_not_join_within_the_rebalance_timeout_is_left_behind() -> None:
    world = World()
    world.stable("A", "B")
    world.join("C")
    for _ in range(12):
        world.beat("B")  # alive, but busy
        world.join("A", "A-id")
        world.pass_ms(5000)
    assert [each.member_id for each in world.joined["A"].members] == ["A-id", "C-id"]
    assert world.beat("B") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_whose_session_ends_makes_the_others_rebalance() -> None:
    world = World()
    world.stable("A", "B")
    world.pass_ms(9_999)
    assert world.beat("B") is ErrorCode.NONE
    world.pass_ms(1)
    assert world.beat("A") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.beat("B") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_never_fetches_its_assignment_is_left_behind() -> None:
    world = World()
    world.join("A")
    world.join("B")
    world.pass_ms(6000)
    world.sync("A", {})
    for _ in range(12):
        world.beat("A"), world.beat("B")
        world.pass_ms(5000)
    assert list(world.group.members) == ["A-id"]


def test_a_leader_that_never_assigns_is_replaced() -> None:
    world = World()
    world.join("A")
    world.join("B")
    world.pass_ms(6000)
    world.sync("B")
    for _ in range(12):
        world.beat("A")
        world.pass_ms(5000)
    assert world.synced["B"].error is ErrorCode.REBALANCE_IN_PROGRESS
    answer = world.join("B", "B-id")
    assert answer is not None and answer.leader == "B-id"


def test_the_session_of_who_waited_begins_again_with_the_generation() -> None:
    world = World()
    world.stable("A", "B")
    assert world.join("A", "A-id") is None
    for _ in range(6):
        world.pass_ms(5000)
        assert world.beat("B") is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join("B", "B-id") is not None
    world.pass_ms(9_999)
    assert list(world.group.members) == ["A-id", "B-id"]
    world.pass_ms(1)
    assert not world.group.members or world.group.state is not GroupState.STABLE


def test_who_asks_for_its_assignment_is_heard() -> None:
    world = World()
    world.stable("A", "B")
    world.pass_ms(9_000)
    world.beat("A")
    assert world.sync("B") is not None
    world.pass_ms(9_000)
    assert list(world.group.members) == ["A-id", "B-id"]


def test_an_old_generation_is_refused() -> None:
    world = World()
    world.stable("A")
    assert world.group.heartbeat("A-id", None, 0, 0) is ErrorCode.ILLEGAL_GENERATION
    assert world.group.may_commit("A-id", None, 0, 0, False) is ErrorCode.ILLEGAL_GENERATION
    assert world.group.may_commit("A-id", None, 1, 0, True) is ErrorCode.NONE
    refused = world.group.sync(SyncRequest("A-id", 7), "A", 0)
    assert refused == [Synced("A", SyncAnswer(ErrorCode.ILLEGAL_GENERATION))]


def test_a_group_with_members_refuses_commits_of_others() -> None:
    world = World()
    assert world.group.may_commit("", None, -1, 0, False) is ErrorCode.NONE
    world.stable("A")
    assert world.group.may_commit("", None, -1, 0, False) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.group.may_commit("", None, -1, 0, True) is ErrorCode.NONE
    assert world.group.may_commit("Z", None, 1, 0, True) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_member_that_leaves_empties_the_group() -> None:
    world = World()
    world.stable("A")
    error, effects = world.group.leave("A-id", None, 5)
    world.take(effects)
    assert error is ErrorCode.NONE
    assert world.group.state is GroupState.EMPTY
    assert world.stored[-1].members == () and world.stored[-1].generation == 2
    assert world.group.leave("A-id", None, 5)[0] is ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_completes_a_rebalance_that_waited_for_the_member() -> None:
    world = World()
    world.stable("A", "B")
    world.join("A", "A-id", protocols=(STICKY, RANGE))
    assert "A" not in world.joined
    world.take(world.group.leave("B-id", None, world.now_ms)[1])
    assert len(world.joined["A"].members) == 1


def test_a_follower_that_asks_again_is_answered_without_a_rebalance() -> None:
    world = World()
    world.stable("A", "B")
    again = world.join("B", "B-id")
    assert again is not None and again.generation == 1
    assert world.join("A", "A-id") is None  # the leader's coming again is a wish to rebalance
    assert world.group.state is GroupState.PREPARING_REBALANCE


def test_the_protocol_is_one_that_all_have_and_most_prefer() -> None:
    world = World()
    world.join("A", protocols=(STICKY, RANGE))
    world.join("B", protocols=(STICKY, RANGE))
    world.join("C", protocols=(RANGE, STICKY))
    world.pass_ms(6000)
    assert world.joined["A"].protocol == "sticky"
    assert world.joined["A"].members[2].metadata == STICKY.metadata
    refused = world.join("D", protocols=(Protocol("other", b""),))
    assert refused is not None and refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    refused = world.join("D", protocol_type="connect")
    assert refused is not None and refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_static_member_that_restarts_keeps_its_assignment_without_a_rebalance() -> None:
    world = World()
    world.join("A")
    world.join("B", instance_id="b")
    world.pass_ms(6000)
    world.sync("B")
    world.sync("A", {"B-id": b"for B"})
    again = world.join("B", instance_id="b", fresh_id="B2")
    assert again is not None and (again.member_id, again.generation) == ("B2", 1)
    assert world.stored[-1].members[1].member_id == "B2"
    answer = world.sync("B")
    assert answer is not None and answer.assignment == b"for B"
    fenced = world.group.heartbeat("B-id", "b", 1, 0)
    assert fenced is ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("A") is ErrorCode.NONE


@pytest.mark.parametrize("knows_kip_814", [False, True])
def test_a_static_leader_that_restarts_does_not_assign_anew(knows_kip_814: bool) -> None:
    world = World()
    world.stable("A", instance_id="a")
    again = world.join("A", instance_id="a", fresh_id="A2", may_skip_assignment=knows_kip_814)
    assert again is not None and again.member_id == "A2"
    assert again.leader == ("A2" if knows_kip_814 else "A-id")
    assert again.skips_assignment is knows_kip_814
    assert len(again.members) == knows_kip_814


def test_a_static_member_with_other_topics_makes_the_group_rebalance() -> None:
    world = World()
    world.stable("A", instance_id="a")
    other = (Protocol("range", b"other topics"),)
    answer = world.join("A", instance_id="a", fresh_id="A2", protocols=other)
    assert answer is not None and answer.generation == 2


def test_a_parked_static_member_is_fenced_by_its_successor() -> None:
    world = World()
    world.join("A", instance_id="a")
    world.join("A2", instance_id="a")
    assert world.joined["A"].error is ErrorCode.FENCED_INSTANCE_ID
    world.pass_ms(6000)
    assert world.joined["A2"].error is ErrorCode.NONE


def test_an_administrator_removes_a_static_member_by_its_instance() -> None:
    world = World()
    world.stable("A", instance_id="a")
    assert world.group.leave("", "z", 0)[0] is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.group.leave("", "a", 0)[0] is ErrorCode.NONE
    assert world.group.state is GroupState.EMPTY


def test_a_static_member_is_not_left_behind_by_a_rebalance_before_its_session_ends() -> None:
    world = World()
    world.stable("A", "B", instance_id=None)
    world.join("C", instance_id="c", session_timeout_ms=100_000)
    world.join("A", "A-id")
    world.join("B", "B-id")
    world.sync("A", {}), world.sync("B"), world.sync("C")
    world.join("A", "A-id")
    world.join("B", "B-id")
    for _ in range(12):
        world.pass_ms(5000)
    assert {each.member_id for each in world.joined["A"].members} == {"A-id", "B-id", "C-id"}


def test_bounds_of_a_group_are_kept() -> None:
    world = World(GroupLimits(max_members=2, max_member_bytes=40, max_group_bytes=100))
    world.join("A", needs_known_id=True)
    world.join("B")
    full = world.join("C")
    assert full is not None and full.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    big = world.join("A", "A-id", protocols=(Protocol("range", bytes(40)),))
    assert big is not None and big.error is ErrorCode.MESSAGE_TOO_LARGE
    static = world.join("A", instance_id="i" * 20)
    assert static is not None and static.error is ErrorCode.MESSAGE_TOO_LARGE
    short = world.join("A", "A-id", session_timeout_ms=5999)
    assert short is not None and short.error is ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_group_takes_what_is_exactly_within_its_bounds() -> None:
    world = World(GroupLimits(initial_rebalance_delay_ms=0, max_protocols=2, max_member_bytes=30))
    # Six bytes of metadata, the names of the protocols, of their kind, and the id.
    two = (Protocol("range", b"abc"), Protocol("roundr", b"def"))
    assert sum(len(each.name) + len(each.metadata) for each in two) == 30 - len("A-idconsumer") - 1
    shortest = world.join(
        "A", protocols=two, session_timeout_ms=world.group.limits.min_session_timeout_ms
    )
    assert shortest is not None and shortest.error is ErrorCode.NONE
    three = world.join("B", protocols=(*two, RANGE))
    assert three is not None and three.error is ErrorCode.MESSAGE_TOO_LARGE


def test_a_follower_that_lost_its_answer_is_removed_when_it_stays_silent() -> None:
    world = World()
    world.stable("A", "B")
    assert world.join("B", "B-id") is not None
    for _ in range(4):
        world.pass_ms(5000)
        world.beat("A")
    assert list(world.group.members) == ["A-id"]


def test_an_answer_that_is_given_again_sets_the_time_to_look() -> None:
    world = World()
    world.stable("A", "B")
    world.group.wake_ms = float("inf")
    assert world.join("B", "B-id") is not None
    assert world.group.wake_ms == world.group.members["B-id"].expires_ms


def test_an_assignment_beyond_the_bound_is_refused_and_not_stored() -> None:
    world = World(GroupLimits(initial_rebalance_delay_ms=0, max_group_bytes=100))
    world.join("A")
    answer = world.sync("A", {"A-id": bytes(100)})
    assert answer is not None and answer.error is ErrorCode.MESSAGE_TOO_LARGE
    assert not world.stored
    assert world.group.state is GroupState.PREPARING_REBALANCE


def test_a_deleted_group_sends_everybody_away() -> None:
    world = World()
    world.join("A")
    world.take(world.group.die(0))
    assert world.joined["A"].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    again = world.join("A", "A-id")
    assert again is not None and again.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.group.heartbeat("A-id", None, 1, 0) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.group.leave("A-id", None, 0)[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_stored_group_goes_on_without_a_rebalance() -> None:
    world = World()
    world.stable("A", "B", instance_id=None)
    stored = world.stored[-1]
    world.group = ClassicGroup.restored("g", LIMITS, stored, world.now_ms)
    assert world.group.stored() == stored
    assert world.beat("A") is ErrorCode.NONE
    answer = world.sync("B")
    assert answer is not None and answer.assignment == b"for B"
    world.pass_ms(10_000)
    assert world.group.state is GroupState.EMPTY


@pytest.mark.parametrize("seed", range(30))
def test_no_order_of_events_leaves_a_client_waiting_for_ever(seed: int) -> None:
    """Whatever happens, every waiting request is answered, and time empties the group."""
    rng = random.Random(seed)
    world = World(GroupLimits(max_members=5, initial_rebalance_delay_ms=rng.choice((0, 3000))))
    waiting: set[str] = set()
    for number in range(300):
        name = rng.choice("ABCDEF")
        answer = world.joined.get(name)
        member_id = answer.member_id if answer else ""
        match rng.randrange(8):
            case 0 | 1:
                instance_id = rng.choice((None, None, name.lower()))
                world.join(
                    name,
                    rng.choice((member_id, "")),
                    fresh_id=f"{name}{number}",
                    instance_id=instance_id,
                    needs_known_id=rng.random() < 0.5,
                    protocols=rng.choice(((RANGE,), (STICKY, RANGE))),
                )
                waiting.add(name)
            case 2 | 3 if answer and answer.error is ErrorCode.NONE:
                world.sync(name, {each.member_id: b"x" for each in answer.members})
            case 4:
                world.take(world.group.leave(member_id, None, world.now_ms)[1])
            case 5 if answer:
                world.beat(name)
            case _:
                world.pass_ms(rng.choice((1, 500, 5000)))
    world.pass_ms(1_000_000)
    assert world.group.state is GroupState.EMPTY
    assert waiting <= set(world.joined)
    assert not world.group.pending and not world.group.static
