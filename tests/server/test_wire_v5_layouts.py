"""Layouts of ordinary topics for the V5 SDK, on the wire."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from raw_client import RawClient
from topics_world import World, run
from v5_raw import close_layout, next_layout, topics_of, watch_layout
from virtual_loop import LoopClock

import pybroker.testing
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName
from pybroker.broker.topics import Topics
from pybroker.server.scalable import on_layout, v5_session
from pybroker.server.scalable.shared import Scalable
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
Connect = Callable[..., RawClient]


def partitioned(broker: Any, topic: str, partitions: int) -> None:
    name = TopicName.parse(topic)

    async def change(running: Any) -> None:
        topics: Topics = running.topics
        if topics.tenants.partitions(name):
            await topics.partitioned.grow(name, partitions)
        else:
            await topics.create_partitioned(name, partitions)

    broker.call(change)


def test_the_sdk_is_welcome(raw: RawClient) -> None:
    flags = raw.connected.feature_flags
    assert flags.supports_scalable_topics and flags.supports_tc_metadata_discovery


def test_a_topic_without_partitions_has_one_segment(raw: RawClient, topic: str) -> None:
    update = watch_layout(raw, topic, session_id=7)
    (segment,) = update.dag.segments
    assert (update.session_id, update.dag.epoch, segment.segment_id) == (7, 0, 0)
    assert (segment.hash_start, segment.hash_end, segment.state) == (0, 65535, pb.ACTIVE)
    assert segment.legacy_topic_name == topic and segment.created_at_ms > 0
    assert update.resolved_topic_name == topic.replace("persistent", "topic")
    assert not update.dag.HasField("controller_broker_url"), "clients use the URL they have"


def test_each_partition_is_a_segment_of_the_same_number(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    partitioned(wire_broker, topic, 3)
    segments = watch_layout(raw, topic).dag.segments
    assert [each.segment_id for each in segments] == [0, 1, 2]
    assert [each.legacy_topic_name for each in segments] == [
        f"{topic}-partition-{number}" for number in range(3)
    ]
    ranges = [(each.hash_start, each.hash_end) for each in segments]
    assert ranges == [(0, 21844), (21845, 43689), (43690, 65535)]


def test_added_partitions_come_as_a_new_layout(
    raw: RawClient, connect: Connect, wire_broker: Any, topic: str
) -> None:
    partitioned(wire_broker, topic, 1)
    other = connect()
    for each in (raw, other):
        watch_layout(each, topic, session_id=5)
    partitioned(wire_broker, topic, 2)
    for each in (raw, other):
        update = next_layout(each)
        assert (update.session_id, len(update.dag.segments)) == (5, 2)


def test_a_new_partition_has_the_subscriptions_before_clients_hear_of_it(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    partitioned(wire_broker, topic, 1)
    raw.subscribe(f"{topic}-partition-0")
    watch_layout(raw, topic)
    partitioned(wire_broker, topic, 2)
    new = next_layout(raw).dag.segments[1].legacy_topic_name

    async def subscribed(running: Any) -> list[str]:
        found = await running.topics.get(TopicName.parse(new))
        return list(found.subscriptions)

    assert wire_broker.call(subscribed) == ["raw"]


def test_a_closed_watch_hears_nothing(
    raw: RawClient, connect: Connect, wire_broker: Any, topic: str
) -> None:
    partitioned(wire_broker, topic, 1)
    other = connect()
    for each in (raw, other):
        watch_layout(each, topic)
    close_layout(raw)
    close_layout(raw, session_id=99)
    raw.kinds_before_pong()
    partitioned(wire_broker, topic, 2)
    next_layout(other)
    assert raw.kinds_before_pong() == []


def test_a_repeated_session_id_replaces_the_watch(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    others = f"{topic}-other"
    for each in (topic, others):
        partitioned(wire_broker, each, 1)
        watch_layout(raw, each, session_id=3)
    partitioned(wire_broker, topic, 2)
    partitioned(wire_broker, others, 2)
    assert topics_of(next_layout(raw))[0].startswith(others.rpartition("/")[2])
    assert raw.kinds_before_pong() == []


def test_a_session_goes_on_over_a_new_connection(
    connect: Connect, wire_broker: Any, topic: str
) -> None:
    partitioned(wire_broker, topic, 1)
    former = connect()
    watch_layout(former, topic, session_id=3)
    former.close()
    raw = connect()
    watch_layout(raw, topic, session_id=3)
    partitioned(wire_broker, topic, 2)
    assert len(next_layout(raw).dag.segments) == 2


def test_nothing_is_kept_of_a_connection_that_has_gone(
    connect: Connect, wire_broker: Any, topic: str
) -> None:
    leaving = connect()
    watch_layout(leaving, topic)
    leaving.close()
    connect()

    async def watched(running: Any) -> bool:
        return TopicName.parse(topic) in running._services.scalable.layouts._feeds

    while wire_broker.call(watched):
        pass


def test_deleting_a_topic_says_nothing_and_a_new_topic_of_its_name_has_a_new_layout(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    partitioned(wire_broker, topic, 2)
    watch_layout(raw, topic)
    name = TopicName.parse(topic)
    wire_broker.call(lambda running: running.topics.delete_partitioned(name, force=True))
    assert raw.kinds_before_pong() == []
    partitioned(wire_broker, topic, 1)
    assert len(next_layout(raw).dag.segments) == 1


@pytest.mark.parametrize(
    ("name", "error", "sentence"),
    [
        ("persistent://public/default/t-partition-0", pb.TopicNotFound, "open persistent://"),
        ("non-persistent://public/default/t", pb.NotAllowedError, "no non-persistent topics"),
        ("topic://public/default/t-partition-0", pb.InvalidTopicName, "like a partition"),
        ("topic://public/absent/t", pb.TopicNotFound, "Namespace does not exist"),
        ("segment://public/default/t/0000-ffff-0", pb.InvalidTopicName, "open topic://"),
        ("segment://public/default/t/0-1-0", pb.InvalidTopicName, "/SSSS-EEEE-id"),
        ("persistent://public/absent/t", pb.TopicNotFound, "Namespace does not exist"),
        ("persistent://public", pb.InvalidTopicName, "not of the form"),
        ("persistent://public/default/__transaction_log_0", pb.NotAllowedError, "another name"),
    ],
)
def test_a_name_without_a_layout_is_refused_with_what_to_do(
    raw: RawClient, name: str, error: Any, sentence: str
) -> None:
    refused = watch_layout(raw, name)
    assert refused.error == error and sentence in refused.message
    assert raw.kinds_before_pong() == [], "the connection lives on"


def test_a_missing_topic_is_not_made_for_who_does_not_ask_for_that(
    raw: RawClient, topic: str
) -> None:
    assert watch_layout(raw, topic, create=False).error == pb.TopicNotFound


def test_a_topic_is_made_as_the_policies_of_its_namespace_say() -> None:
    settings = {"allow_auto_topic_creation_type": "partitioned", "default_num_partitions": 3}
    with (
        pybroker.testing.broker(**settings) as broker,
        RawClient(broker.service_url) as raw,
    ):
        assert len(watch_layout(raw, "persistent://public/default/new").dag.segments) == 3


def test_no_layout_is_larger_than_a_command(
    raw: RawClient, wire_broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitioned(wire_broker, topic, 2)
    monkeypatch.setattr("pybroker.broker.scalable.layout.MAX_SEGMENTS", 1)
    refused = watch_layout(raw, topic)
    assert refused.error == pb.NotAllowedError and "use a 4.x client" in refused.message


def test_a_connection_has_a_limited_number_of_watches(
    raw: RawClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(v5_session, "MAX_WATCHES", 2)
    for session_id in (1, 2, 1):
        assert not watch_layout(raw, topic, session_id).HasField("error")
    assert watch_layout(raw, topic, 3).error == pb.TooManyRequests


def test_a_broker_can_be_told_not_to_serve_the_sdk() -> None:
    config = BrokerConfig(scalable_topics_enabled=False)
    with (
        pybroker.testing.broker(config=config) as broker,
        RawClient(broker.service_url) as raw,
    ):
        flags = raw.connected.feature_flags
        assert not flags.supports_scalable_topics and not flags.supports_tc_metadata_discovery
        refused = watch_layout(raw, "persistent://public/default/t")
        assert refused.error == pb.NotAllowedError
        assert "scalableTopicsEnabled=true" in refused.message
        close_layout(raw)
        assert raw.kinds_before_pong() == []


def test_who_is_gone_before_its_watch_begins_leaves_none_behind() -> None:
    """Its connection has already ended its watches, and no other code would end this one."""

    async def scenario(world: World) -> None:
        config, clock = BrokerConfig(), LoopClock()
        scalable = Scalable(world.topics, clock, config)
        services = SimpleNamespace(
            topics=world.topics, config=config, scalable=scalable, clock=clock
        )
        gone: Any = SimpleNamespace(closed=True, watchers={}, services=services)
        asked = pb.CommandScalableTopicLookup(session_id=1, topic="t")
        await on_layout.lookup(gone, asked)
        assert not any(each._watches for each in gone.watchers.values())

    run(scenario)


def test_ordinary_topics_are_not_among_the_scalable_ones(raw: RawClient, topic: str) -> None:
    watch_layout(raw, topic)
    asked = pb.CommandWatchScalableTopics(watch_id=4, namespace="public/default")
    raw.send(_T.WATCH_SCALABLE_TOPICS, "watchScalableTopics", asked)
    update = raw.receive(_T.WATCH_SCALABLE_TOPICS_UPDATE)
    assert update.watch_id == 4 and update.HasField("snapshot")
    assert not [name for name in update.snapshot.topics if not name.startswith("topic://")]


def test_the_scalable_topics_of_an_absent_namespace_are_not_found(raw: RawClient) -> None:
    asked = pb.CommandWatchScalableTopics(watch_id=4, namespace="public/absent")
    raw.send(_T.WATCH_SCALABLE_TOPICS, "watchScalableTopics", asked)
    assert raw.receive(_T.WATCH_SCALABLE_TOPICS_UPDATE).error == pb.TopicNotFound
