"""Questions about many topics reach the brokers that serve them, despite moves and crashes."""

from collections.abc import Iterator
from typing import Any

import pytest
from txn_cluster import TxnBroker, TxnCluster

from pybroker.base.errors import TopicNotFound
from pybroker.base.names import TopicName
from pybroker.client.connection.cluster import Cluster
from pybroker.client.options import InitialPosition
from pybroker.client.topic_questions import NoSuchQuestions, TopicQuestion, TopicState


@pytest.fixture
def cluster() -> Iterator[TxnCluster]:
    cluster = TxnCluster(0)
    yield cluster
    cluster.close()


def filled(cluster: TxnCluster, broker: TxnBroker) -> str:
    topic = cluster.topic_of(broker)
    cluster.call(cluster.send(broker, topic, b"x"))
    return topic


def ask(cluster: TxnCluster, at: TxnBroker, topics: list[str], **what: Any) -> list[TopicState]:
    questions = [TopicQuestion(topic) for topic in topics]
    states: list[TopicState] = cluster.call(cluster.client_at(at).ask_topics(questions, **what))
    assert [state.topic for state in states] == topics
    return states


def test_each_topic_is_answered_for_by_the_broker_that_serves_it(cluster: TxnCluster) -> None:
    one, two, three = (cluster.start(name) for name in ("one", "two", "three"))
    topics = [filled(cluster, each) for each in (two, one, three)]
    missing = [*(f"{topic}-missing" for topic in topics), "persistent://public/no-space/x"]
    made = {"subscription": "s", "initial_position": InitialPosition.Earliest}
    states = ask(cluster, one, topics + missing, **made)
    found = states[:3]
    assert [(each.error, each.last[1], each.backlog) for each in found] == [(None, 0, 1)] * 3
    assert [type(each.error) for each in states[3:]] == [TopicNotFound] * 4
    for broker, topic in zip((two, one, three), topics, strict=False):
        serving = broker.broker.topics.serving(TopicName.parse(topic))
        assert serving is not None and "s" in serving.subscriptions


def test_brokers_of_topics_are_looked_up_once(
    cluster: TxnCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    topics = [filled(cluster, one), filled(cluster, two)]
    looked_up: list[str] = []
    look_up = Cluster.connection_for

    async def noted(self: Cluster, topic: str) -> Any:
        looked_up.append(topic)
        return await look_up(self, topic)

    monkeypatch.setattr(Cluster, "connection_for", noted)
    for _ in range(3):
        ask(cluster, one, topics)
    assert looked_up == topics[1:]


def test_a_broker_that_cannot_be_asked_is_the_error_of_its_topics_only(
    cluster: TxnCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    topics = [filled(cluster, two), filled(cluster, one)]
    look_up = Cluster.connection_for

    async def found(self: Cluster, topic: str) -> Any:
        connection = await look_up(self, topic)
        connection.answers_topic_questions = False  # like Apache Pulsar's broker
        return connection

    monkeypatch.setattr(Cluster, "connection_for", found)
    other, own = ask(cluster, one, topics)
    assert isinstance(other.error, NoSuchQuestions) and own.error is None


@pytest.mark.parametrize("moves", ["unloaded", "killed", "of the service url killed"])
def test_questions_follow_a_topic_to_its_next_broker(cluster: TxnCluster, moves: str) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    topics = [filled(cluster, one), filled(cluster, two)]
    before = ask(cluster, one, topics)
    asked = one
    if moves == "unloaded":
        name = TopicName.parse(topics[1])
        bundle = next(each for each in two.ownership.owned() if each.holds(name))
        cluster.world.call(two.node, two.ownership.release(bundle))
        cluster.take(one, name)
    elif moves == "killed":
        cluster.crash(two)
    else:
        one.url = f"{one.url},{two.url.removeprefix('pulsar://')}"
        assert ask(cluster, one, topics) == before
        cluster.crash(one)
    assert ask(cluster, asked, topics) == before
