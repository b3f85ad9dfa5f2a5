"""What clients of the V5 SDK are told by several brokers."""

from collections.abc import Iterator

import pytest
from two_brokers import ORDERS, PARTITIONS, TwoBrokers
from txn_cluster import TxnCluster
from v5_client import V5Connection

from pybroker.base.names import COORDINATOR_ASSIGN, TopicName
from pybroker.broker.brokers.ownership import Bundle
from pybroker.wire import pulsar_api_pb2 as pb

pytestmark = pytest.mark.slow

NAME = TopicName.parse("orders")


@pytest.fixture
def brokers() -> Iterator[TwoBrokers]:
    brokers = TwoBrokers(0)
    yield brokers
    brokers.cluster.close()


@pytest.fixture
def pair() -> Iterator[TxnCluster]:
    """Two brokers; each serves a coordinator."""
    pair = TxnCluster(0, transaction_coordinators=2)
    for number, broker in enumerate((pair.start("one"), pair.start("two"))):
        pair.take(broker, COORDINATOR_ASSIGN.partition_at(number))
    yield pair
    pair.close()


def test_partitions_that_one_broker_adds_reach_the_clients_of_both_with_their_subscriptions(
    brokers: TwoBrokers,
) -> None:
    cluster = brokers.cluster
    first = brokers.names[0]
    cluster.call(cluster.read(brokers.owner(first), str(first), "audit"))
    watching = [cluster.call(V5Connection.open(each.url)) for each in (brokers.one, brokers.two)]
    for each in watching:
        assert len(cluster.call(each.layout(str(NAME))).segments) == PARTITIONS
    brokers.rest.do("POST", f"{ORDERS}/partitions", b"%d" % (PARTITIONS + 2))
    new = [NAME.partition_at(PARTITIONS + number) for number in range(2)]
    for broker, each in zip((brokers.one, brokers.two), watching, strict=True):
        dag = cluster.call(each.next_layout())
        assert [segment.legacy_topic_name for segment in dag.segments[PARTITIONS:]] == [
            *map(str, new)
        ]
        ledgers = broker.broker.ledgers
        assert all(ledgers.has_cursor(name.ledger_name, "audit") for name in new)


def test_both_brokers_name_the_same_controller_and_only_that_one_divides(
    brokers: TwoBrokers,
) -> None:
    cluster = brokers.cluster
    one = cluster.call(V5Connection.open(brokers.one.url))
    two = cluster.call(V5Connection.open(brokers.two.url))
    for each in (one, two):
        dag = cluster.call(each.layout(str(NAME)))
        assert dag.controller_broker_url == brokers.owner(NAME).url
    there, other = (one, two) if brokers.owner(NAME) is brokers.one else (two, one)
    assert cluster.call(other.join(str(NAME), "a")).error == pb.ServiceNotReady
    assert len(cluster.call(there.join(str(NAME), "a")).assignment.segments) == PARTITIONS


def test_a_controller_that_moves_disconnects_its_consumers_and_they_find_the_next(
    brokers: TwoBrokers,
) -> None:
    cluster = brokers.cluster
    cluster.take(brokers.one, NAME)
    former = brokers.owner(NAME)
    (bundle,) = [each for each in former.ownership.owned() if each.holds(NAME)]
    other = brokers.two if former is brokers.one else brokers.one
    consumer = cluster.call(V5Connection.open(former.url))
    cluster.call(consumer.join(str(NAME), "a"))
    cluster.world.call(former.node, former.ownership.release(bundle))
    cluster.call(consumer.closed())
    cluster.take(other, NAME)
    again = cluster.call(V5Connection.open(former.url))
    assert cluster.call(again.layout(str(NAME))).controller_broker_url == other.url
    there = cluster.call(V5Connection.open(other.url))
    assert len(cluster.call(there.join(str(NAME), "a")).assignment.segments) == PARTITIONS


def test_each_broker_knows_where_each_coordinator_is(pair: TxnCluster) -> None:
    one, two = pair.brokers
    for broker in pair.brokers:
        client = pair.call(V5Connection.open(broker.url))
        places = pair.call(client.places())
        assert set(places) == {0, 1} and set(places.values()) <= {one.url, two.url}
        for tc_id, url in places.items():
            there = pair.call(V5Connection.open(url))
            assert not pair.call(there.connect_coordinator(tc_id)).HasField("error")


def test_coordinators_of_a_dead_broker_are_told_in_their_new_place(pair: TxnCluster) -> None:
    one, two = pair.brokers
    bundles: list[Bundle] = two.ownership.owned()
    assert any(each.holds(COORDINATOR_ASSIGN.partition_at(1)) for each in bundles)
    client = pair.call(V5Connection.open(one.url))
    places = pair.call(client.places())
    assert places[1] == two.url
    pair.crash(two)
    while places.get(1) != one.url:
        places = pair.call(client.next_places())
    there = pair.call(V5Connection.open(one.url))
    assert not pair.call(there.connect_coordinator(1)).HasField("error")


def test_a_coordinator_that_nobody_has_is_taken_by_the_broker_that_clients_were_told() -> None:
    pair = TxnCluster(1, transaction_coordinators=4)
    pair.start("one"), pair.start("two")
    client = pair.call(V5Connection.open(pair.brokers[0].url))
    for tc_id, url in pair.call(client.places()).items():
        there = pair.call(V5Connection.open(url))
        assert not pair.call(there.connect_coordinator(tc_id)).HasField("error")
    pair.close()
