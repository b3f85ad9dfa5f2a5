"""Scalable topics with several brokers, their storage on bookies and ZooKeeper."""

from collections.abc import Iterator

import pytest
from rest import Rest
from txn_cluster import TxnBroker, TxnCluster
from v5_client import V5Connection

from pybroker.base.names import TopicName, any_topic
from pybroker.broker.scalable.record import of_segment

pytestmark = pytest.mark.slow

ORDERS = "v2/scalable/public/default/orders"
NAME = any_topic("topic://public/default/orders")


class Pair:
    def __init__(self) -> None:
        self.cluster = TxnCluster(0, serves_http=True)
        self.one, self.two = self.cluster.start("one"), self.cluster.start("two")
        self.rest, self.other_rest = Rest(self.cluster, self.one), Rest(self.cluster, self.two)

    def owner(self) -> TxnBroker:
        return next(each for each in self.cluster.brokers if each.ownership.owns(NAME))

    def other(self) -> TxnBroker:
        return next(each for each in self.cluster.brokers if not each.ownership.owns(NAME))

    def segment(self, number: int) -> str:
        record = self.cluster.brokers[0].broker.topics.scalable.get(NAME)
        return str(of_segment(NAME, record.segments[number]))

    def send(self, number: int, payload: bytes = b"x") -> None:
        self.cluster.call(self.cluster.send(self.owner(), self.segment(number), payload))

    def read(self, number: int, subscription: str = "reads") -> list[bytes]:
        topic = self.segment(number)
        found: list[bytes] = self.cluster.call(self.cluster.read(self.owner(), topic, subscription))
        return found


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.cluster.close()


def states(dag: object) -> list[int]:
    return [each.state for each in dag.segments]  # type: ignore[attr-defined]


def test_all_segments_are_served_by_the_broker_of_their_topic(pair: Pair) -> None:
    pair.other_rest.do("PUT", ORDERS, numInitialSegments=4)
    assert pair.rest.get(ORDERS) == pair.other_rest.get(ORDERS)
    for number in range(4):
        assert pair.owner().ownership.owns(TopicName.parse(pair.segment(number)))
        pair.send(number, b"%d" % number)
    assert [pair.read(number) for number in range(4)] == [[b"%d" % n] for n in range(4)]


def test_a_split_asked_of_any_broker_is_seen_by_all(pair: Pair) -> None:
    pair.rest.do("PUT", ORDERS)
    pair.rest.get(f"{ORDERS}/stats")
    pair.send(0, b"before")
    pair.read(0, "away")
    watching = [pair.cluster.call(V5Connection.open(each.url)) for each in (pair.one, pair.two)]
    for each in watching:
        assert len(pair.cluster.call(each.layout(str(NAME))).segments) == 1
    for rest in (pair.rest, pair.other_rest):
        active = min(
            int(number)
            for number, each in rest.get(ORDERS)["segments"].items()
            if each["state"] == "ACTIVE"
        )
        rest.do("POST", f"{ORDERS}/split/{active}")
        dags = [pair.cluster.call(each.next_layout()) for each in watching]
        assert dags[0].segments == dags[1].segments
    assert len(dags[0].segments) == 5 and dags[0].epoch == 2
    pair.send(2, b"after")
    assert pair.read(2, "away") == [b"after"] and pair.read(0, "away") == [b"before"]


def test_a_topic_whose_broker_dies_goes_on_with_the_next(pair: Pair) -> None:
    pair.rest.do("PUT", ORDERS)
    pair.rest.get(f"{ORDERS}/stats")
    pair.send(0, b"before")
    pair.rest.do("POST", f"{ORDERS}/split/0")
    pair.send(1, b"after")
    pair.cluster.crash(pair.owner())
    left = pair.cluster.brokers[0]
    pair.cluster.take(left, NAME)
    assert pair.read(0) == [b"before"] and pair.read(1) == [b"after"]
    Rest(pair.cluster, left).do("POST", f"{ORDERS}/split/2")
    pair.send(4, b"later")
    assert pair.read(4) == [b"later"]


@pytest.mark.parametrize("after_s", [0.0, 0.0003, 0.0006, 0.001, 0.002, 0.004, 0.01])
def test_a_split_whose_broker_dies_has_happened_or_not(pair: Pair, after_s: float) -> None:
    pair.rest.do("PUT", ORDERS)
    pair.rest.get(f"{ORDERS}/stats")
    pair.send(0, b"before")
    pair.read(0, "away")
    owner, cluster = pair.owner(), pair.cluster
    splitting = owner.broker.topics.scalable.split(NAME, 0)
    owner.node.start(splitting)
    cluster.world.sleep(after_s)
    cluster.crash(owner)
    left = cluster.brokers[0]
    cluster.take(left, NAME)
    dag = cluster.call(cluster.call(V5Connection.open(left.url)).layout(str(NAME)))
    assert states(dag) in ([0], [1, 0, 0])
    for segment in dag.segments:
        if segment.state == 0:
            pair.send(segment.segment_id, b"after")
            assert b"after" in pair.read(segment.segment_id, "away")
    assert b"before" in pair.read(0, "away")


def test_a_namespace_is_deleted_with_its_scalable_topics(pair: Pair) -> None:
    shop = "v2/namespaces/public/shop"
    pair.rest.do("PUT", shop)
    for number in range(4):
        pair.rest.do("PUT", f"v2/scalable/public/shop/t{number}", numInitialSegments=2)
        pair.other_rest.get(f"v2/scalable/public/shop/t{number}/stats")
    assert pair.rest.ask("DELETE", shop).status == 409
    pair.rest.do("DELETE", shop, force="true")
    pair.rest.do("PUT", shop)
    assert pair.other_rest.get("v2/scalable/public/shop") == []
