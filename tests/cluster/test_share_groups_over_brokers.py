"""Share groups in a cluster: partitions are on other brokers than the group's coordinator."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from kafka_cluster import KafkaCluster, partition
from kafka_produce import batch
from rest import Rest
from share_words import LEAVES, Got, ShareMember, from_the_beginning, set_config, share_beat
from sharing_member import Record, Shared, SharingMember
from txn_cluster import TxnBroker, hears_when_asked

from pybroker.broker.brokers.other_brokers import Reply
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.offsets.logs import topic_of_group
from pybroker.kafka.shares.acquired import AckType

pytestmark = pytest.mark.slow
SHARE_OFFSETS, ALTER_SHARE_OFFSETS, DELETE_SHARE_OFFSETS, DELETE_GROUPS = 90, 91, 92, 42
NONE, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
ACCEPT, RELEASE = AckType.ACCEPT, AckType.RELEASE


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(0, serves_http=True)
    yield cluster
    cluster.close()


def shared_topics(cluster: KafkaCluster, group: str, coordinator: TxnBroker) -> dict[str, Any]:
    """A topic on each broker, with three records, and the group that begins with them."""
    from_the_beginning(cluster.at(coordinator), group)
    topics = {cluster.topic_on(each): each for each in cluster.brokers}
    for topic, broker in topics.items():
        for offset, value in enumerate((b"a", b"b", b"c")):
            assert cluster.produce(broker, topic, batch(value)) == (NONE, offset)
    share_beat(cluster.at(coordinator), group, "A", 0, sorted(topics))
    return topics


def fetched(cluster: KafkaCluster, broker: TxnBroker, group: str, topic: str) -> list[str]:
    member = ShareMember(cluster.at(broker), group, "B", topic)
    found = member.fetch().texts
    member.leave()
    return found


def described(cluster: KafkaCluster, broker: TxnBroker, group: str) -> dict[str, Any]:
    """The code, and where the group is on the first partition of each topic."""
    body = {"groups": [{"group_id": group, "topics": None}]}
    (found,) = cluster.ask(broker, SHARE_OFFSETS, 1, body)["groups"]
    assert not found["error_code"], found
    return {
        each["topic_name"]: (part["error_code"], part["start_offset"], part["lag"])
        for each in found["topics"]
        for part in each["partitions"]
    }


def moved(
    cluster: KafkaCluster, broker: TxnBroker, group: str, offsets: dict[str, int]
) -> dict[str, int]:
    """The code for each topic."""
    topics = [
        {"topic_name": name, "partitions": [{"partition_index": 0, "start_offset": offset}]}
        for name, offset in offsets.items()
    ]
    found = cluster.ask(broker, ALTER_SHARE_OFFSETS, 0, {"group_id": group, "topics": topics})
    assert not found["error_code"], found
    return {each["topic_name"]: each["partitions"][0]["error_code"] for each in found["responses"]}


def test_a_coordinator_shows_moves_and_deletes_positions_on_all_brokers(
    cluster: KafkaCluster,
) -> None:
    _, two = cluster.two()
    group = cluster.group_on(two)
    topics = shared_topics(cluster, group, two)
    for topic, broker in topics.items():
        member = ShareMember(cluster.at(broker), group, "A", topic)
        assert member.fetch().texts == ["a", "b", "c"]
        assert member.say((0, 0, [ACCEPT])).ack_error == NONE
        member.leave()
    assert described(cluster, two, group) == dict.fromkeys(topics, (NONE, 1, 2))
    share_beat(cluster.at(two), group, "A", LEAVES)
    assert moved(cluster, two, group, dict.fromkeys(topics, 2)) == dict.fromkeys(topics, NONE)
    assert described(cluster, two, group) == dict.fromkeys(topics, (NONE, 2, 1))
    assert [fetched(cluster, each, group, topic) for topic, each in topics.items()] == [["c"]] * 2
    deleted = {"group_id": group, "topics": [{"topic_name": each} for each in topics]}
    answers = cluster.ask(two, DELETE_SHARE_OFFSETS, 0, deleted)["responses"]
    assert [each["error_code"] for each in answers] == [NONE, NONE]
    assert described(cluster, two, group) == {}
    assert moved(cluster, two, group, dict.fromkeys(topics, 0)) == dict.fromkeys(topics, NONE)
    gone = cluster.ask(two, DELETE_GROUPS, 2, {"groups_names": [group]})["results"]
    assert [each["error_code"] for each in gone] == [NONE]
    for topic, broker in topics.items():
        served = cluster.world.call(broker.node, broker.broker.topics.served(partition(topic)))
        assert group not in served.subscriptions, "nothing holds messages back"


def test_a_broker_that_hangs_leaves_its_own_partitions_without_an_answer(
    cluster: KafkaCluster,
) -> None:
    _, two = cluster.two()
    group = cluster.group_on(two)
    topics = shared_topics(cluster, group, two)

    async def hang(*args: Any) -> None:
        await asyncio.Event().wait()

    two.membership.others.ask = hang  # type: ignore[method-assign, assignment]
    shown = described(cluster, two, group)
    assert {topics[topic].name: each[0] for topic, each in shown.items()} == {
        "one": NOT_LEADER,
        "two": NONE,
    }
    share_beat(cluster.at(two), group, "A", LEAVES)
    codes = moved(cluster, two, group, dict.fromkeys(topics, 1))
    assert {topics[topic].name: each for topic, each in codes.items()} == {
        "one": NOT_LEADER,
        "two": NONE,
    }


def test_a_group_is_not_deleted_while_subscriptions_of_it_would_be_left_behind(
    cluster: KafkaCluster,
) -> None:
    _, two = cluster.two()
    group = cluster.group_on(two)
    topics = shared_topics(cluster, group, two)
    share_beat(cluster.at(two), group, "A", LEAVES)
    for topic, broker in topics.items():
        fetched(cluster, broker, group, topic)
    ask = two.membership.others.ask

    async def refuse(*args: Any) -> Reply:
        return Reply(503)

    two.membership.others.ask = refuse  # type: ignore[method-assign, assignment]
    body = {"groups_names": [group]}
    (gone,) = cluster.ask(two, DELETE_GROUPS, 2, body)["results"]
    assert gone["error_code"] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    two.membership.others.ask = ask  # type: ignore[method-assign]
    (gone,) = cluster.ask(two, DELETE_GROUPS, 2, body)["results"]
    assert gone["error_code"] == NONE
    assert [has_subscription(cluster, each, group) for each in topics.items()] == [False, False]


def test_a_group_is_deleted_though_a_partition_is_gone(cluster: KafkaCluster) -> None:
    _, two = cluster.two()
    group = cluster.group_on(two)
    shared_topics(cluster, group, two)
    share_beat(cluster.at(two), group, "A", LEAVES)

    async def unknown(*args: Any) -> Reply:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return Reply(200, b'[{"partition": 0, "errorCode": %d}]' % code)

    two.membership.others.ask = unknown  # type: ignore[method-assign, assignment]
    (gone,) = cluster.ask(two, DELETE_GROUPS, 2, {"groups_names": [group]})["results"]
    assert gone["error_code"] == NONE


def test_a_topic_of_which_the_coordinator_has_not_heard_is_not_passed_over(
    cluster: KafkaCluster,
) -> None:
    one, two = cluster.two()
    group = cluster.group_on(two)
    share_beat(cluster.at(two), group, "A", 0, [cluster.topic_on(one)])
    share_beat(cluster.at(two), group, "A", LEAVES)
    hears_when_asked(two)
    late = (f"late-{number}" for number in range(1000))
    topic = next(each for each in late if one.ownership.owns(partition(each)))
    cluster.create(one, topic)
    assert moved(cluster, two, group, {topic: 0}) == {topic: NONE}
    assert topic in described(cluster, two, group)
    assert has_subscription(cluster, (topic, one), group)


def has_subscription(cluster: KafkaCluster, at: tuple[str, TxnBroker], group: str) -> bool:
    topic, broker = at
    served = cluster.world.call(broker.node, broker.broker.topics.served(partition(topic)))
    return group in served.subscriptions


def test_the_admin_api_moves_and_deletes_positions_on_all_brokers_of_a_group_without_members(
    cluster: KafkaCluster,
) -> None:
    one, two = cluster.two()
    group = cluster.group_on(two)
    topics = shared_topics(cluster, group, two)
    topic = next(name for name, broker in topics.items() if broker is one)
    rest, other = Rest(cluster, two), Rest(cluster, one)
    path = f"v3/kafka/shareOffsets/{group}/{topic}"
    offsets = b'{"offsets": [{"partition": 0, "offset": 2}]}'
    for each in (rest.ask("POST", path, offsets), rest.ask("DELETE", path)):
        assert (each.status, b"has members" in each.body) == (409, True)
    assert fetched(cluster, one, group, topic) == ["a", "b", "c"]
    share_beat(cluster.at(two), group, "A", LEAVES)
    assert other.do("POST", path, offsets) == [{"partition": 0, "startOffset": 2, "lag": 1}]
    assert rest.do("DELETE", path) == [{"partition": 0}]
    assert not has_subscription(cluster, (topic, one), group)
    assert other.ask("DELETE", path.replace(group, "nobody")).status == 404
    assert rest.ask("DELETE", path.replace(topic, "nothing")).status == 404


def test_an_error_of_a_later_version_is_told_as_unknown(cluster: KafkaCluster) -> None:
    _, two = cluster.two()
    group = cluster.group_on(two)
    topics = shared_topics(cluster, group, two)

    async def answer(*args: Any) -> Reply:
        return Reply(200, b'[{"partition": 0, "errorCode": 9999}]')

    two.membership.others.ask = answer  # type: ignore[method-assign, assignment]
    shown = described(cluster, two, group)
    assert {topics[topic].name: each[0] for topic, each in shown.items()} == {
        "one": ErrorCode.UNKNOWN_SERVER_ERROR,
        "two": NONE,
    }


def test_a_partition_that_moves_keeps_what_was_accepted_and_gives_the_rest_again(
    cluster: KafkaCluster,
) -> None:
    one, two = cluster.two()
    group = cluster.group_on(two)
    topic = cluster.topic_on(one)
    from_the_beginning(cluster.at(two), group)
    for each in (b"a", b"b", b"c", b"d"):
        assert cluster.produce(one, topic, batch(each))[0] == NONE
    share_beat(cluster.at(two), group, "A", 0, [topic])
    member = ShareMember(cluster.at(one), group, "A", topic)
    assert member.fetch().texts == ["a", "b", "c", "d"]
    assert member.say((0, 0, [ACCEPT]), (2, 2, [RELEASE]), (3, 3, [ACCEPT])).ack_error == NONE
    cluster.hand_over(one, two, partition(topic))
    assert member.say((1, 1, [ACCEPT])).ack_error == NOT_LEADER
    again = ShareMember(cluster.at(two), group, "A", topic)
    assert _settled(cluster, again).texts == ["b", "c"]
    assert again.say((1, 2, [ACCEPT])).ack_error == NONE
    cluster.crash(two)
    cluster.until(lambda: one.ownership.owns(topic_of_group(group)))
    last = ShareMember(cluster.at(one), group, "A", topic)
    assert _settled(cluster, last).texts == []
    assert described(cluster, one, group) == {topic: (NONE, 4, 0)}


def _settled(cluster: KafkaCluster, member: ShareMember) -> Got:
    """What the member is given, as soon as its broker has taken over."""
    for _ in range(200):
        if not (found := member.fetch()).error:
            return found
        cluster.world.sleep(0.2)
    raise AssertionError(f"the broker still answers {found}")


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_comes_again_while_bundles_move_and_a_broker_dies(seed: int) -> None:
    cluster = KafkaCluster(seed, serves_http=True)
    try:
        one, two = cluster.two()
        group, shared = cluster.group_on(one), Shared()
        from_the_beginning(cluster.at(one), group)
        assert not set_config(cluster.at(one), group, "share.delivery.count.limit", "10")
        topics = {cluster.topic_on(each): each for each in (one, two)}
        share_beat(cluster.at(one), group, "A", 0, sorted(topics))
        wanted = set[Record]()
        for topic, broker in topics.items():
            for each in range(40):
                values = [b"x"] * (1 + each % 3)
                code, first = cluster.produce(broker, topic, batch(*values))
                assert code == NONE
                wanted |= {Record(topic, first + index) for index in range(len(values))}
        members = [
            SharingMember(cluster, group, topic, f"{topic} {seed} {number}", shared)
            for topic in topics
            for number in range(2)
        ]
        running = [cluster.start_task(each.run()) for each in members]
        of_one, of_two = topics
        cluster.until(lambda: shared.deliveries > 20)
        cluster.hand_over(one, two, partition(of_one))
        cluster.until(lambda: shared.deliveries > 40)
        cluster.hand_over(two, one, partition(of_two))
        cluster.until(lambda: shared.deliveries > 60)
        cluster.crash(one)
        cluster.until(lambda: wanted <= shared.perhaps or any(each.done() for each in running))
        cluster.world.sleep(90.0)  # every lock has run out, twice
        for member in members:
            member.stopping = True
        cluster.until(lambda: all(each.done() for each in running))
        for each in running:
            each.result()
        assert (shared.perhaps, shared.broken, shared.kept_back) == (wanted, [], [])
        assert len(shared.accepted) > len(wanted) // 2
        assert shared.released
        ends = described(cluster, two, group)
        assert ends == {topic: (NONE, len([x for x in wanted if x.topic == topic]), 0)
                        for topic in topics}  # fmt: skip
    finally:
        cluster.close()
