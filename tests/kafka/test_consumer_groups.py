"""Groups of KIP-848, driven with values, and the assignors."""

import random

import pytest

from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.assignors import ASSIGNORS, Assignment, ranges, uniform
from pybroker.kafka.groups.consumer_group import (
    LEAVES,
    LEAVES_FOR_A_WHILE,
    Beat,
    BeatAnswer,
    ConsumerGroup,
    ConsumerLimits,
    GroupState,
)
from pybroker.kafka.offsets.records import TopicPartition

TOPICS = frozenset({"a"})
NOBODY: dict[str, frozenset[TopicPartition]] = {}


def parts(*indexes: int, topic: str = "a") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, each) for each in indexes)


class World:
    """A group with members that do as they are told."""

    def __init__(self, partitions: int = 4) -> None:
        self.now_ms = 0
        self.group = ConsumerGroup("g", ConsumerLimits(max_members=5), 0)
        self.group.has_partitions({"a": partitions})
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, frozenset[TopicPartition]] = {}

    def join(self, name: str, instance_id: str | None = None) -> BeatAnswer:
        return self._beat(Beat(name, 0, instance_id, 60_000, TOPICS, owned=frozenset()))

    def beat(self, name: str, gives_up: bool = True) -> BeatAnswer:
        """Reports what it owns; what it gets is its own from then on."""
        owned = self.owned[name] if gives_up else self.kept[name]
        return self._beat(Beat(name, self.epochs[name], owned=owned))

    @property
    def kept(self) -> dict[str, frozenset[TopicPartition]]:
        members = self.group.members
        return {each: members[each].assigned | members[each].revoking for each in self.owned}

    def _beat(self, beat: Beat) -> BeatAnswer:
        answer = self.group.beat(beat, self.now_ms)
        self.epochs[beat.member_id] = answer.epoch
        if answer.assignment is not None:
            self.owned[beat.member_id] = answer.assignment
        return answer

    def settle(self) -> None:
        for _ in range(5):
            for name in list(self.owned):
                self.beat(name)
        assert self.group.state is GroupState.STABLE


def error_of(work: object) -> ErrorCode:
    assert callable(work)
    with pytest.raises(KafkaError) as raised:
        work()
    return raised.value.code


def test_the_first_member_gets_everything() -> None:
    world = World()
    answer = world.join("A")
    assert answer.assignment == parts(0, 1, 2, 3)
    assert world.group.state is GroupState.STABLE


def test_each_new_member_raises_the_epoch_by_one() -> None:
    world = World()
    for member_id in ("A", "B", "C"):
        before = world.group.epoch
        world.group._joining(Beat(member_id, 0, None, 60_000, TOPICS), 0)
        assert world.group.epoch == before + 1


def test_a_partition_moves_when_its_owner_has_given_it_up() -> None:
    world = World()
    world.join("A")
    assert world.join("B").assignment == frozenset()
    assert world.beat("A", gives_up=False).assignment == parts(0, 1)
    assert world.beat("B").assignment == frozenset()  # A still has them
    assert world.beat("A", gives_up=False).assignment == parts(0, 1)
    assert world.beat("B").assignment == frozenset()
    world.beat("A")
    assert world.beat("B").assignment == parts(2, 3)
    world.settle()
    assert world.epochs["A"] == world.epochs["B"] == world.group.epoch


def test_a_member_that_leaves_makes_room() -> None:
    world = World()
    world.join("A")
    world.join("B")
    world.settle()
    world.group.beat(Beat("B", LEAVES), 0)
    assert world.beat("A").assignment == parts(0, 1, 2, 3)


def test_a_silent_member_is_removed() -> None:
    world = World()
    world.join("A")
    world.join("B")
    world.settle()
    world.now_ms = 44_999
    world.beat("A")
    world.group.wake(45_000)
    assert list(world.group.members) == ["A"]
    world.beat("A")
    assert world.beat("A").assignment == parts(0, 1, 2, 3)
    stale = Beat("B", world.epochs["B"])
    assert error_of(lambda: world.group.beat(stale, 0)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_give_up_in_time_is_removed() -> None:
    world = World()
    world.join("A")
    world.join("B")
    for _ in range(7):
        world.now_ms += 10_000
        world.group.wake(world.now_ms)
        if "A" not in world.group.members:
            break
        world.beat("A", gives_up=False)
        world.beat("B")
    assert list(world.group.members) == ["B"]


def test_a_group_looks_again_when_a_member_must_have_given_up() -> None:
    world = World()
    world.group.beat(Beat("A", 0, None, 10_000, TOPICS, owned=frozenset()), 0)
    world.join("B")
    world.group.beat(Beat("A", world.group.members["A"].epoch, owned=parts(0, 1, 2, 3)), 1)
    assert world.group.wake_ms == 10_001


def test_who_joins_anew_while_it_gives_up_is_not_removed_for_it() -> None:
    world = World()
    world.join("A")
    world.join("B")
    world.beat("A", gives_up=False)
    world.join("A")
    for _ in range(10):
        world.now_ms += 10_000
        world.group.wake(world.now_ms)
        world.beat("A")
        world.beat("B")
    world.settle()


def test_who_joins_anew_has_given_up_what_it_had() -> None:
    world = World()
    world.join("A")
    world.join("B")
    again = world.group.beat(Beat("A", 0, None, 60_000, TOPICS), 0)
    assert again.assignment == parts(0, 1)
    assert world.beat("B").assignment == parts(2, 3)


def test_a_wrong_epoch_is_fenced() -> None:
    world = World()
    world.join("A")
    late = Beat("A", world.epochs["A"] + 1)
    assert error_of(lambda: world.group.beat(late, 0)) is ErrorCode.FENCED_MEMBER_EPOCH
    stranger = Beat("Z", 3)
    assert error_of(lambda: world.group.beat(stranger, 0)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_whose_answer_was_lost_may_repeat_its_epoch() -> None:
    world = World()
    world.join("A")
    before = world.epochs["A"]
    world.join("B")
    world.beat("A", gives_up=False)
    world.beat("A")  # follows: its epoch rises
    assert world.group.members["A"].epoch > before
    again = world.group.beat(Beat("A", before, owned=parts(0, 1)), 0)
    assert again.epoch == world.group.members["A"].epoch


def test_only_members_commit_and_only_with_their_epoch() -> None:
    world = World()
    assert world.group.may_commit("", -1) is ErrorCode.NONE
    world.join("A")
    assert world.group.may_commit("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.group.may_commit("A", 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert world.group.may_commit("A", world.epochs["A"]) is ErrorCode.NONE


def test_a_static_member_comes_back_to_its_partitions() -> None:
    world = World()
    world.join("A", "i")
    world.join("B")
    world.settle()
    mine = world.owned["A"]
    newcomer = Beat("A2", 0, "i", 60_000, TOPICS, owned=frozenset())
    in_use = error_of(lambda: world.group.beat(newcomer, 0))
    assert in_use is ErrorCode.UNRELEASED_INSTANCE_ID
    world.group.beat(Beat("A", LEAVES_FOR_A_WHILE, "i"), 0)
    epoch = world.group.epoch
    assert world.group.beat(newcomer, 0).assignment == mine
    assert world.group.epoch == epoch
    old = Beat("A", epoch, "i")
    assert error_of(lambda: world.group.beat(old, 0)) is ErrorCode.FENCED_INSTANCE_ID


def test_more_partitions_are_assigned() -> None:
    world = World(2)
    world.join("A")
    world.group.has_partitions({"a": 3})
    assert world.beat("A").assignment == parts(0, 1, 2)


def test_bounds_are_kept() -> None:
    world = World()
    for name in "ABCDE":
        world.join(name)
    assert error_of(lambda: world.join("F")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    many = Beat("A", 0, None, 1, frozenset(map(str, range(10_001))))
    assert error_of(lambda: world.group.beat(many, 0)) is ErrorCode.INVALID_REQUEST
    other = Beat("A", 0, None, 1, TOPICS, "mine")
    assert error_of(lambda: world.group.beat(other, 0)) is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert error_of(lambda: world.group.beat(Beat("X", 0), 0)) is ErrorCode.INVALID_REQUEST
    assert "X" not in world.group.members


@pytest.mark.parametrize("seed", range(20))
def test_no_partition_is_ever_two_members_and_all_are_read_in_the_end(seed: int) -> None:
    rng = random.Random(seed)
    world = World(7)
    for _ in range(200):
        name = rng.choice("ABCD")
        if name not in world.group.members:
            world.join(name)
        elif rng.random() < 0.1:
            world.group.beat(Beat(name, LEAVES), world.now_ms)
            world.owned.pop(name)
        else:
            world.beat(name, gives_up=rng.random() < 0.7)
        everybodys = [place for some in world.kept.values() for place in some]
        assert len(everybodys) == len(set(everybodys))
    if not world.owned:
        world.join("A")
    world.settle()
    assert frozenset().union(*world.owned.values()) == parts(*range(7))
    sizes = sorted(map(len, world.owned.values()))
    assert sizes[-1] - sizes[0] <= 1


# -- assignors


@pytest.mark.parametrize("assignor", ASSIGNORS)
@pytest.mark.parametrize("seed", range(20))
def test_each_partition_goes_to_one_member_that_wants_it(assignor: str, seed: int) -> None:
    rng = random.Random(seed)
    topics = {f"t{each}": rng.randrange(6) for each in range(5)}
    some = {name: frozenset(rng.sample(sorted(topics), rng.randrange(1, 5))) for name in "ABCD"}
    found = ASSIGNORS[assignor](some, topics, NOBODY)
    given = [place for places in found.values() for place in places]
    wanted = {
        TopicPartition(topic, each)
        for topic in frozenset().union(*some.values())
        for each in range(topics[topic])
    }
    assert len(given) == len(wanted)
    assert set(given) == wanted
    assert all(place.topic in some[name] for name, places in found.items() for place in places)


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_a_topic_that_is_not_there_has_no_partition(assignor: str) -> None:
    assert ASSIGNORS[assignor]({"A": TOPICS}, {}, NOBODY) == {"A": frozenset()}


def test_the_assignor_is_the_one_that_most_members_ask_for() -> None:
    world = World()
    for name, asked, used in (
        ("A", None, "uniform"),
        ("B", "range", "range"),
        ("C", None, "range"),
    ):
        world.group.beat(Beat(name, 0, None, 60_000, TOPICS, asked, owned=frozenset()), 0)
        assert world.group.assignor == used


def test_uniform_takes_away_as_little_as_it_can() -> None:
    before: Assignment = {"A": parts(0, 1, 2), "B": parts(3, 4, 5)}
    some = dict.fromkeys("ABC", TOPICS)
    after = uniform(some, {"a": 6}, before)
    assert sorted(map(len, after.values())) == [2, 2, 2]
    assert after["A"] < before["A"] and after["B"] < before["B"]
    assert uniform(some, {"a": 6}, after) == after


def test_uniform_evens_out_what_members_with_other_topics_have() -> None:
    some = {"A": frozenset({"a"}), "B": frozenset({"a", "b"})}
    everything = parts(0, 1, 2, 3) | parts(0, topic="b")
    found = uniform(some, {"a": 4, "b": 1}, {"A": frozenset(), "B": everything})
    assert sorted(map(len, found.values())) == [2, 3]
    assert found["A"] | found["B"] == everything
    many = uniform(some, {"a": 1, "b": 4}, {"A": frozenset(), "B": everything})
    assert many == {"A": parts(0), "B": parts(0, 1, 2, 3, topic="b")}


def test_range_gives_neighbours_to_one_member() -> None:
    found = ranges({"A": TOPICS, "B": TOPICS}, {"a": 5}, NOBODY)
    assert found == {"A": parts(0, 1, 2), "B": parts(3, 4)}
