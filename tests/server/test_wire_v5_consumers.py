"""Groups of consumers of the V5 SDK, and where it finds transaction coordinators, on the wire."""

from collections.abc import Callable
from typing import Any

import pytest
from raw_client import RawClient
from v5_raw import join, leave, next_assignment, segments_of, watch_coordinators

import pybroker.testing
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import COORDINATOR_ASSIGN, TopicName
from pybroker.broker.scalable import controllers
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
Connect = Callable[..., RawClient]
PARTITIONS = 4


@pytest.fixture
def parts(wire_broker: Any, topic: str) -> str:
    """A topic of four partitions."""
    name = TopicName.parse(topic)
    wire_broker.call(lambda running: running.topics.create_partitioned(name, PARTITIONS))
    return topic


def test_one_consumer_gets_all_segments_and_their_topics(raw: RawClient, parts: str) -> None:
    assignment = join(raw, parts).assignment
    assert [each.segment_topic for each in assignment.segments] == [
        f"{parts}-partition-{number}" for number in range(PARTITIONS)
    ]
    assert assignment.segments[3].hash_end == 65535


def test_consumers_share_the_segments_and_the_leaver_leaves_its_own(
    raw: RawClient, connect: Connect, parts: str
) -> None:
    other = connect()
    join(raw, parts, "a")
    assert segments_of(join(other, parts, "b")) == [1, 3]
    assert segments_of(next_assignment(raw)) == [0, 2]
    assert isinstance(leave(other), pb.CommandSuccess)
    assert segments_of(next_assignment(raw)) == [0, 1, 2, 3]


def test_a_consumer_too_many_waits_with_nothing(raw: RawClient, topic: str) -> None:
    assert segments_of(join(raw, topic, "a", 1)) == [0]
    assert segments_of(join(raw, topic, "b", 2)) == []
    leave(raw, 1)
    update = next_assignment(raw)
    assert (update.consumer_id, segments_of(update)) == (2, [0])


def test_groups_of_other_subscriptions_and_of_checkpoints_share_nothing(
    raw: RawClient, parts: str
) -> None:
    everything = [0, 1, 2, 3]
    assert segments_of(join(raw, parts, "a", 1)) == everything
    assert segments_of(join(raw, parts, "b", 2, subscription="other")) == everything
    assert segments_of(join(raw, parts, "c", 3, kind=pb.CHECKPOINT)) == everything


def test_who_loses_the_connection_keeps_the_segments_for_a_while(
    raw: RawClient, connect: Connect, parts: str
) -> None:
    lost = connect()
    join(raw, parts, "a")
    join(lost, parts, "b")
    next_assignment(raw)
    lost.close()
    again = connect()
    assert segments_of(join(again, parts, "b", consumer_id=8)) == [1, 3]
    assert raw.kinds_before_pong() == [], "nothing was divided anew"


def test_after_the_grace_period_the_others_get_the_segments() -> None:
    config = BrokerConfig(scalable_topic_consumer_session_grace_period_seconds=0)
    with (
        pybroker.testing.broker(config=config) as broker,
        RawClient(broker.service_url) as raw,
    ):
        topic = "persistent://public/default/t"
        with RawClient(broker.service_url) as lost:
            join(lost, topic, "a")
            assert segments_of(join(raw, topic, "b")) == []
        assert segments_of(next_assignment(raw)) == [0]


def test_a_consumer_of_the_same_name_takes_the_place_and_the_former_may_leave(
    raw: RawClient, connect: Connect, parts: str
) -> None:
    former = connect()
    join(former, parts, "a", consumer_id=1)
    assert segments_of(join(raw, parts, "a", consumer_id=2)) == [0, 1, 2, 3]
    assert isinstance(leave(former, 1), pb.CommandSuccess)
    join(former, parts, "b", consumer_id=3)
    assert segments_of(next_assignment(raw)) == [0, 2], "it still is in the group"


def test_an_unknown_consumer_has_left(raw: RawClient) -> None:
    assert isinstance(leave(raw, 77), pb.CommandSuccess)


def test_added_partitions_are_divided(raw: RawClient, wire_broker: Any, parts: str) -> None:
    join(raw, parts, "a", 1)
    join(raw, parts, "b", 2)
    next_assignment(raw)
    name = TopicName.parse(parts)
    wire_broker.call(lambda running: running.topics.partitioned.grow(name, 6))
    updates = {update.consumer_id: update for update in (next_assignment(raw) for _ in range(2))}
    assert segments_of(updates[1]) == [0, 2, 4] and segments_of(updates[2]) == [1, 3, 5]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic": "persistent://public"}, pb.InvalidTopicName),
        ({"topic": "topic://public/default/t-partition-0"}, pb.InvalidTopicName),
        ({"topic": "segment://public/default/t/0000-ffff-0"}, pb.InvalidTopicName),
        ({"topic": "non-persistent://public/default/t"}, pb.NotAllowedError),
        ({"topic": "persistent://public/absent/t"}, pb.TopicNotFound),
        ({"topic": "persistent://public/default/t-partition-0"}, pb.TopicNotFound),
        ({"subscription": ""}, pb.NotAllowedError),
        ({"name": "n" * 2000}, pb.NotAllowedError),
    ],
)
def test_a_consumer_that_cannot_join_hears_why(
    raw: RawClient, topic: str, fields: dict[str, Any], error: Any
) -> None:
    refused = join(raw, **({"topic": topic} | fields))
    assert refused.error == error and refused.message
    assert not refused.HasField("assignment")


def test_a_group_has_a_limited_number_of_consumers(
    raw: RawClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controllers, "MAX_MEMBERS", 1)
    join(raw, topic, "a", 1)
    assert join(raw, topic, "b", 2).error == pb.TooManyRequests
    assert segments_of(join(raw, topic, "a", 3)) == [0], "it is there already"


# -- transaction coordinators


def test_all_coordinators_are_here(raw: RawClient, wire_broker: Any) -> None:
    snapshot = watch_coordinators(raw).snapshot
    assert snapshot.parallelism == 16
    assert [each.tc_id for each in snapshot.assignments] == list(range(16))
    assert {each.broker_service_url for each in snapshot.assignments} == {wire_broker.service_url}


def test_more_coordinators_are_told_and_a_closed_watch_hears_nothing() -> None:
    config = BrokerConfig(transaction_coordinators=1)
    with (
        pybroker.testing.broker(config=config) as broker,
        RawClient(broker.service_url) as raw,
        RawClient(broker.service_url) as closed,
    ):
        for each in (raw, closed):
            assert watch_coordinators(each).snapshot.parallelism == 1
        over = pb.CommandWatchTcAssignmentsClose(watch_id=1)
        closed.send(_T.WATCH_TC_ASSIGNMENTS_CLOSE, "watchTcAssignmentsClose", over)
        closed.kinds_before_pong()
        tenants = COORDINATOR_ASSIGN
        broker.call(lambda running: running.topics.tenants.set_partitions(tenants, 3))
        snapshot = raw.receive(_T.WATCH_TC_ASSIGNMENTS_UPDATE).snapshot
        assert (snapshot.parallelism, len(snapshot.assignments)) == (3, 3)
        assert closed.kinds_before_pong() == []


@pytest.mark.parametrize(
    "setting",
    ["transaction_coordinator_enabled", "transaction_coordinator_scalable_topics_enabled"],
)
def test_a_broker_without_transactions_for_the_sdk_says_so(setting: str) -> None:
    config = BrokerConfig(**{setting: False})  # type: ignore[arg-type]
    with (
        pybroker.testing.broker(config=config) as broker,
        RawClient(broker.service_url) as raw,
    ):
        flags = raw.connected.feature_flags
        assert flags.supports_scalable_topics and not flags.supports_tc_metadata_discovery
        refused = watch_coordinators(raw)
        assert refused.error == pb.NotAllowedError and "=true" in refused.message.replace(
            " to true", "=true"
        )
        connect = pb.CommandTcClientConnectRequest(tc_id=0, scalable=True)
        answer = raw.request(_T.TC_CLIENT_CONNECT_REQUEST, "tcClientConnectRequest", connect)
        assert answer.error == pb.NotAllowedError


def test_a_v5_and_a_4x_transaction_never_have_the_same_id(raw: RawClient) -> None:
    connect = pb.CommandTcClientConnectRequest(tc_id=0, scalable=True)
    answer = raw.request(_T.TC_CLIENT_CONNECT_REQUEST, "tcClientConnectRequest", connect)
    assert not answer.HasField("error")
    ids = [raw.new_txn(scalable=bool(number % 2)) for number in range(6)]
    assert len(set(ids)) == 6
    for txn_id in ids:
        assert not raw.end(txn_id, commit=True).HasField("error")
