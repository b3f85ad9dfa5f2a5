"""An ordinary topic whose partitions several brokers serve is made scalable by one decision."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final, cast

import pytest
from rest import Rest
from txn_cluster import TxnBroker, TxnCluster, hears_when_asked
from v5_client import V5Connection

from pybroker.base.errors import ServiceNotReady, TopicTerminated
from pybroker.base.names import TopicName, any_topic
from pybroker.broker.brokers.other_brokers import Reply
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.scalable.migration import Migration
from pybroker.broker.scalable.record import TopicRecord, of_segment
from pybroker.client.aio import Consumer, Producer

NAME: Final = any_topic("topic://public/default/orders")
ORDERS: Final = any_topic("persistent://public/default/orders")
MIGRATE: Final = "v2/scalable/public/default/orders/migrate"
V5: Final = {"__pulsar.v5.managed": "true"}


class Pair:
    """Two brokers, and a partitioned topic of which each serves a part."""

    def __init__(self, partitions: int = 4) -> None:
        self.cluster = TxnCluster(0, serves_http=True)
        self.one, self.two = self.cluster.start("one"), self.cluster.start("two")
        self.rest, self.other_rest = Rest(self.cluster, self.one), Rest(self.cluster, self.two)
        self.parts = [ORDERS.partition_at(index) for index in range(partitions)] or [ORDERS]
        path = "v2/persistent/public/default/orders"
        if partitions:
            self.rest.do("PUT", f"{path}/partitions", b"%d" % partitions)
        for index, part in enumerate(self.parts):
            self.send(str(part), b"before %d" % index)
            self.rest.do(
                "PUT", f"v2/{str(part).replace('://', '/')}/subscription/away", b'"earliest"'
            )

    def owner(self) -> TxnBroker:
        return next(each for each in self.cluster.brokers if each.ownership.owns(NAME))

    def other(self) -> TxnBroker:
        return next(each for each in self.cluster.brokers if not each.ownership.owns(NAME))

    def serve_elsewhere(self) -> None:
        """The scalable topic's broker is `one`; a part is at `two`, if there is any."""
        self.cluster.take(self.one, NAME)
        for part in self.parts:
            if self.two.ownership.owns(part):
                return
        raise AssertionError("all parts are served by one broker")

    def send(self, topic: str, payload: bytes) -> None:
        self.cluster.call(self.cluster.send(self.cluster.brokers[0], topic, payload))

    def read(self, topic: str, subscription: str) -> list[bytes]:
        cluster = self.cluster
        found: list[bytes] = cluster.call(cluster.read(cluster.brokers[0], topic, subscription))
        return found

    def segments(self) -> list[str]:
        record = self.owner().broker.topics.scalable.get(NAME)
        return [str(of_segment(NAME, each)) for each in record.segments.values()]

    def check_is_scalable(self) -> None:
        """All parts are served by the topic's broker, and have ended with what they had."""
        topics, count = self.segments(), len(self.parts)
        for index, part in enumerate(self.parts):
            assert topics[index] == str(part)
            assert self.owner().ownership.owns(part)
            assert self.read(str(part), "away") == [b"before %d" % index]
        for topic in topics[count:]:
            self.send(topic, b"after")
            assert self.read(topic, "away") == [b"after"]


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    pair.serve_elsewhere()
    yield pair
    pair.cluster.close()


def test_parts_of_all_brokers_become_segments_of_one_broker(pair: Pair) -> None:
    watching = [pair.cluster.call(V5Connection.open(each.url)) for each in (pair.one, pair.two)]
    for each in watching:
        assert len(pair.cluster.call(each.layout(str(ORDERS))).segments) == 4
    pair.other_rest.do("POST", MIGRATE)
    dags = [pair.cluster.call(each.next_layout()) for each in watching]
    assert dags[0].segments == dags[1].segments and len(dags[0].segments) == 8
    pair.check_is_scalable()
    pair.rest.do("POST", "v2/scalable/public/default/orders/split/4")


def test_an_ordinary_topic_of_another_broker_is_made_scalable() -> None:
    pair = Pair(partitions=0)
    cluster = pair.cluster
    cluster.take(next(each for each in cluster.brokers if not each.ownership.owns(ORDERS)), NAME)
    pair.other_rest.do("POST", MIGRATE)
    pair.check_is_scalable()
    cluster.close()


def subscribed(pair: Pair, broker: TxnBroker, topic: str, **options: Any) -> Consumer:
    client = pair.cluster.client_at(broker)
    found: Consumer = pair.cluster.call(client.subscribe(topic, "away", **options))
    return found


def theirs(pair: Pair) -> str:
    """A part that the other broker serves."""
    return next(str(part) for part in pair.parts if pair.two.ownership.owns(part))


def test_clients_of_another_broker_must_be_closed_first(pair: Pair) -> None:
    part = theirs(pair)
    consumer = subscribed(pair, pair.one, part)
    refused = pair.rest.ask("POST", MIGRATE)
    assert refused.status == 409 and part in refused.json()["reason"]
    assert not pair.one.broker.topics.scalable.find(NAME)
    pair.cluster.call(consumer.close())
    subscribed(pair, pair.one, part, properties=V5)
    pair.rest.do("POST", MIGRATE)


def test_a_stream_consumer_is_known_by_its_group_wherever_that_is(pair: Pair) -> None:
    """Its group is at one broker, and its segments are at both."""
    subscribed(pair, pair.one, theirs(pair), consumer_name="c-seg-1")
    assert pair.rest.ask("POST", MIGRATE).status == 409
    group = next(each for each in pair.cluster.brokers if each.ownership.owns(ORDERS))
    pair.cluster.call(
        pair.cluster.call(V5Connection.open(group.url)).join(str(ORDERS), "c", subscription="away")
    )
    pair.rest.do("POST", MIGRATE)


def test_a_client_that_is_left_behind_by_force_gets_what_is_stored(pair: Pair) -> None:
    part = theirs(pair)
    client = pair.cluster.client_at(pair.one)
    consumer = subscribed(pair, pair.one, part)
    producer: Producer = pair.cluster.call(client.create_producer(part))
    pair.cluster.call(producer.send(b"last"))
    pair.rest.do("POST", MIGRATE, force="true")
    found = [pair.cluster.call(consumer.receive(30_000)).data() for _ in range(2)]
    assert found == [b"before %d" % pair.parts.index(TopicName.parse(part)), b"last"]
    with pytest.raises(TopicTerminated):
        pair.cluster.call(producer.send(b"too late"))


def test_nothing_is_decided_while_a_broker_does_not_answer(pair: Pair) -> None:
    async def silent(*_: object) -> Reply:
        raise ServiceNotReady("it does not answer")

    pair.cluster.take(pair.one, NAME)
    cast(Any, pair.one.membership.others).ask = silent
    assert pair.rest.ask("POST", MIGRATE, force="true").status == 503
    assert not pair.one.broker.topics.scalable.find(NAME)


def test_what_is_decided_is_carried_out_when_it_is_asked_for_again(pair: Pair) -> None:
    others: Any = pair.one.broker.topics.others_of_parts
    leave = others.leave

    async def once(name: TopicName) -> None:
        others.leave = leave
        raise ServiceNotReady("it does not answer")

    others.leave = once
    assert pair.rest.ask("POST", MIGRATE).status == 503
    assert pair.rest.ask("POST", MIGRATE).status == 204
    pair.check_is_scalable()
    refused = pair.rest.ask("POST", MIGRATE)
    assert refused.status == 409 and "exists already" in refused.json()["reason"]


def test_a_broker_that_hears_late_of_the_decision_gives_its_parts_away_all_the_same(
    pair: Pair,
) -> None:
    part = theirs(pair)
    client = pair.cluster.client_at(pair.two)
    producer: Producer = pair.cluster.call(client.create_producer(part, properties=V5))
    hears_when_asked(pair.two)
    pair.rest.do("POST", MIGRATE)
    assert pair.one.ownership.owns(TopicName.parse(part))
    with pytest.raises(TopicTerminated):
        pair.cluster.call(producer.send(b"too late"))
    pair.check_is_scalable()


def test_a_transaction_that_is_open_meanwhile_ends_as_it_was_told(pair: Pair) -> None:
    cluster, part = pair.cluster, theirs(pair)
    cluster.serve_coordinator(pair.one)
    committed, aborted = (cluster.call(cluster.begin(pair.one)) for _ in range(2))
    cluster.call(cluster.send(pair.one, part, b"committed", committed))
    cluster.call(cluster.send(pair.one, part, b"aborted", aborted))
    pair.rest.do("POST", MIGRATE, force="true")
    cluster.call(committed.commit())
    cluster.call(aborted.abort())
    assert pair.read(part, "away")[1:] == [b"committed"]


def test_the_name_is_free_after_a_deletion(pair: Pair) -> None:
    pair.rest.do("POST", MIGRATE)
    pair.other_rest.do("DELETE", "v2/scalable/public/default/orders", force="true")
    pair.other_rest.do("PUT", "v2/persistent/public/default/orders/partitions", b"4")
    for part in pair.parts:
        pair.send(str(part), b"new")
        assert pair.read(str(part), "new") == [b"new"]
    assert pair.two.ownership.owns(TopicName.parse(theirs(pair)))


@pytest.mark.parametrize("partitions", [0, 4])
def test_a_namespace_is_deleted_with_what_was_made_scalable(partitions: int) -> None:
    cluster = TxnCluster(0, serves_http=True)
    rest, other = (Rest(cluster, cluster.start(name)) for name in ("one", "two"))
    shop, topic = "v2/namespaces/public/shop", "v2/persistent/public/shop/orders"
    rest.do("PUT", shop)
    rest.do("PUT", f"{topic}/partitions", b"%d" % partitions) if partitions else rest.do(
        "PUT", topic
    )
    rest.do("POST", "v2/scalable/public/shop/orders/migrate")
    assert rest.ask("DELETE", shop).status == 409
    rest.do("DELETE", shop, force="true")
    rest.do("PUT", shop)
    assert other.get("v2/scalable/public/shop") == []
    assert other.get("v2/persistent/public/shop") == []
    assert other.get("v2/persistent/public/shop/partitioned") == []
    cluster.close()


@pytest.mark.parametrize("force", ["true", "false"])
def test_a_deletion_of_the_ordinary_topic_is_refused_and_changes_nothing(
    pair: Pair, force: str
) -> None:
    pair.rest.do("POST", MIGRATE)
    for rest in (pair.rest, pair.other_rest):
        path = "v2/persistent/public/default/orders/partitions"
        refused = rest.ask("DELETE", path, force=force)
        assert refused.status == 409 and "was made scalable" in refused.json()["reason"]
        assert rest.get(path)["partitions"] == 4
    pair.check_is_scalable()


def test_of_several_migrations_at_once_none_harms_the_others(pair: Pair) -> None:
    owner = pair.owner()
    topics, metadata = owner.broker.topics, owner.broker._backend.metadata
    migration = Migration(topics, topics.scalable, metadata, topics._clock)

    async def together() -> list[Any]:
        work = (migration.migrate(NAME) for _ in range(3))
        return await asyncio.gather(*work, return_exceptions=True)

    ended = pair.cluster.world.call(owner.node, together())
    assert any(isinstance(each, TopicRecord) for each in ended), ended
    assert all(isinstance(each, TopicRecord | Conflict) for each in ended), ended
    assert pair.cluster.world.failures == []
    pair.check_is_scalable()


def layout_in_the_end(cluster: TxnCluster, broker: TxnBroker) -> Any:
    """A broker that is dead may have a part until its session has expired; clients try again."""
    for _ in range(30):
        connection = cluster.call(V5Connection.open(broker.url))
        try:
            return cluster.call(connection.layout(str(ORDERS)))
        except ConnectionError:
            cluster.world.sleep(1.0)
    raise AssertionError("the topic's layout is not told")


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.03, 0.05, 0.1])
@pytest.mark.parametrize("who", ["owner", "other"])
def test_a_migration_during_which_a_broker_dies_has_happened_or_not(
    pair: Pair, after_s: float, who: str
) -> None:
    cluster, owner = pair.cluster, pair.owner()
    topics, metadata = owner.broker.topics, owner.broker._backend.metadata
    migration = Migration(topics, topics.scalable, metadata, topics._clock)
    owner.node.start(migration.migrate(NAME))
    cluster.world.sleep(after_s)
    cluster.crash(owner if who == "owner" else pair.two)
    (left,) = cluster.brokers
    cluster.take(left, NAME)
    states = [each.state for each in layout_in_the_end(cluster, left).segments]
    if len(states) == 4:
        for index, part in enumerate(pair.parts):
            pair.send(str(part), b"after")
            assert pair.read(str(part), "away") == [b"before %d" % index, b"after"]
    else:
        assert states == [1, 1, 1, 1, 0, 0, 0, 0]
        pair.check_is_scalable()
