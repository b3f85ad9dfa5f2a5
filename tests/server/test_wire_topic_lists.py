"""Topic lists by pattern, and watching them, on the wire."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from raw_client import RawClient
from topics_world import World, run

import pybroker.testing
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName
from pybroker.server.topics import on_topic_list
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
_numbers = itertools.count(1)
Connect = Callable[..., RawClient]


@pytest.fixture
def namespace(wire_broker: Any) -> str:
    name = f"public/watched-{next(_numbers)}"
    wire_broker.call(lambda running: running.topics.tenants.create_namespace(name, {}))
    return name


def watch(
    raw: RawClient, namespace: str, pattern: str, watcher_id: int = 1, known: str = ""
) -> Any:
    asked = pb.CommandWatchTopicList(
        namespace=namespace,
        watcher_id=watcher_id,
        topics_pattern=f"{namespace}/{pattern}",
        topics_hash=known,
    )
    return raw.request(_T.WATCH_TOPIC_LIST, "watchTopicList", asked)


def close_watch(raw: RawClient, watcher_id: int = 1) -> Any:
    asked = pb.CommandWatchTopicListClose(watcher_id=watcher_id)
    return raw.request(_T.WATCH_TOPIC_LIST_CLOSE, "watchTopicListClose", asked)


def listed(raw: RawClient, namespace: str, **fields: Any) -> Any:
    asked = pb.CommandGetTopicsOfNamespace(namespace=namespace, **fields)
    return raw.request(_T.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", asked)


def topics(broker: Any, action: Callable[[Any], Any]) -> None:
    broker.call(lambda running: action(running.topics))


def test_watchers_are_offered(raw: RawClient) -> None:
    assert raw.connected.feature_flags.supports_topic_watchers


def test_a_watcher_hears_what_comes_and_goes(
    raw: RawClient, wire_broker: Any, namespace: str
) -> None:
    old, new = (f"persistent://{namespace}/orders-{n}" for n in (1, 2))
    raw.create_producer(old)
    raw.create_producer(f"persistent://{namespace}/payments", producer_id=2)
    began = watch(raw, namespace, "orders-.*")
    assert list(began.topic) == [old]
    raw.create_producer(new, producer_id=3)
    update = raw.receive(_T.WATCH_TOPIC_UPDATE)
    assert (update.watcher_id, list(update.new_topics), list(update.deleted_topics)) == (
        1,
        [new],
        [],
    )
    topics(wire_broker, lambda them: them.delete(TopicName.parse(old), force=True))
    update = raw.receive(_T.WATCH_TOPIC_UPDATE)
    assert (list(update.new_topics), list(update.deleted_topics)) == ([], [old])
    chosen = listed(raw, namespace, topics_pattern=f"{namespace}/orders-.*")
    assert chosen.topics_hash == update.topics_hash


def test_a_list_that_the_client_knows_is_not_sent(raw: RawClient, namespace: str) -> None:
    raw.create_producer(f"persistent://{namespace}/t")
    known = watch(raw, namespace, ".*").topics_hash
    again = watch(raw, namespace, ".*", known=known)
    assert (list(again.topic), again.topics_hash) == ([], known)


def test_a_closed_watcher_hears_nothing(raw: RawClient, connect: Connect, namespace: str) -> None:
    other = connect()
    for each in (raw, other):
        watch(each, namespace, ".*")
    assert isinstance(close_watch(raw), pb.CommandSuccess)
    assert isinstance(close_watch(raw), pb.CommandSuccess)
    raw.create_producer(f"persistent://{namespace}/t")
    other.receive(_T.WATCH_TOPIC_UPDATE)
    assert raw.kinds_before_pong() == []


def test_nothing_is_kept_of_a_connection_that_has_gone(
    connect: Connect, wire_broker: Any, namespace: str
) -> None:
    leaving = connect()
    watch(leaving, namespace, ".*")
    leaving.close()
    connect()

    async def watched(running: Any) -> bool:
        return namespace in running.topics.watches._feeds

    while wire_broker.call(watched):
        pass


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [("x" * 60, "Pattern longer than maximum: 50"), ("(?!a).*", "lookaround")],
)
def test_a_pattern_that_is_not_worked_off_is_refused(
    raw: RawClient, namespace: str, pattern: str, sentence: str
) -> None:
    refused = watch(raw, namespace, pattern)
    assert refused.error == pb.NotAllowedError and sentence in refused.message


@pytest.mark.slow
def test_a_connection_has_a_limited_number_of_watchers(raw: RawClient, namespace: str) -> None:
    for watcher_id in range(1000):
        assert isinstance(watch(raw, namespace, ".*", watcher_id), pb.CommandWatchTopicListSuccess)
    assert watch(raw, namespace, ".*", 1000).error == pb.TooManyRequests
    assert isinstance(watch(raw, namespace, "a", 5), pb.CommandWatchTopicListSuccess)


def test_an_absent_namespace_cannot_be_watched(raw: RawClient) -> None:
    assert watch(raw, "public/absent", ".*").error == pb.TopicNotFound


def test_a_pattern_selects_from_the_list_and_the_hash_is_that_of_the_selection(
    raw: RawClient, namespace: str
) -> None:
    for number, name in enumerate(("a-1", "a-2", "b-1")):
        raw.create_producer(f"persistent://{namespace}/{name}", producer_id=number)
    raw.create_producer(f"non-persistent://{namespace}/a-3", producer_id=9)
    pattern = f"persistent://{namespace}/a-.*"
    found = listed(raw, namespace, topics_pattern=pattern)
    assert [TopicName.parse(name).local for name in found.topics] == ["a-1", "a-2"]
    assert found.filtered and found.changed
    again = listed(raw, namespace, topics_pattern=pattern, topics_hash=found.topics_hash)
    assert again.filtered and not again.changed and not again.topics
    everything = listed(
        raw, namespace, topics_pattern=pattern, mode=pb.CommandGetTopicsOfNamespace.ALL
    )
    assert len(everything.topics) == 3


@pytest.mark.parametrize("pattern", ["(?!x).*", "y" * 60, "("])
def test_what_the_broker_does_not_work_off_the_client_selects(
    raw: RawClient, namespace: str, pattern: str
) -> None:
    raw.create_producer(f"persistent://{namespace}/t")
    found = listed(raw, namespace, topics_pattern=pattern)
    assert not found.filtered and len(found.topics) == 1


def test_the_broker_can_be_told_not_to_evaluate_patterns() -> None:
    config = BrokerConfig(enable_broker_side_subscription_pattern_evaluation=False)
    with (
        pybroker.testing.broker(config=config) as broker,
        RawClient(broker.service_url) as raw,
    ):
        assert not raw.connected.feature_flags.supports_topic_watchers
        refused = watch(raw, "public/default", ".*")
        assert "Evaluating subscription patterns is disabled." in refused.message


def test_who_is_gone_before_its_watch_begins_leaves_none_behind() -> None:
    """Its connection has already ended its watches, and no other code would end this one."""

    async def scenario(world: World) -> None:
        services = SimpleNamespace(topics=world.topics, config=BrokerConfig())
        gone: Any = SimpleNamespace(closed=True, watchers={}, services=services)
        asked = pb.CommandWatchTopicList(namespace="public/default", topics_pattern=".*")
        await on_topic_list.watch(gone, asked)
        assert not gone.watchers
        assert not world.topics.watches._feeds

    run(scenario)


def test_no_pattern_finds_the_control_topics_of_spark(
    raw: RawClient, wire_broker: Any, namespace: str
) -> None:
    own, users = (f"persistent://{namespace}/{name}" for name in ("__spark-jobs", "orders"))
    raw.create_producer(own)
    raw.create_producer(users, producer_id=2)
    assert list(listed(raw, namespace).topics) == [users]
    assert list(listed(raw, namespace, topics_pattern=f"{namespace}/.*").topics) == [users]
    assert list(watch(raw, namespace, ".*").topic) == [users]
