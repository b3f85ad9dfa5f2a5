"""The admin API of any broker serves topics, namespaces and coordinators of all brokers."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from rest import Rest
from two_brokers import ORDERS, PARTITIONS, SHOP, TwoBrokers, bundles_of

from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import NotServedHere
from pybroker.broker.deletion.deletions import Doomed
from pybroker.broker.namespaces.tenants import Conflict

pytestmark = pytest.mark.slow  # two brokers for each test


@pytest.fixture
def brokers() -> Iterator[TwoBrokers]:
    brokers = TwoBrokers(0)
    yield brokers
    brokers.cluster.close()


def test_partitions_of_a_topic_are_served_by_both(brokers: TwoBrokers) -> None:
    owners = {brokers.owner(name).name for name in brokers.names}
    assert owners == {"one", "two"}


def test_the_bookies_are_those_that_accept_writes(brokers: TwoBrokers) -> None:
    for rest in (brokers.rest, brokers.other_rest):
        listed = [each["bookieId"] for each in rest.get("/admin/v2/bookies/all")["bookies"]]
        assert len(listed) >= 2
        assert listed == sorted(set(listed))


def test_stats_of_a_partitioned_topic_are_of_all_brokers(brokers: TwoBrokers) -> None:
    brokers.publish(2)
    for rest in (brokers.rest, brokers.other_rest):
        stats = rest.get(f"{ORDERS}/partitioned-stats")
        assert stats["msgInCounter"] == 2 * PARTITIONS
        assert sorted(stats["partitions"]) == sorted(map(str, brokers.names))
        assert rest.get(f"{ORDERS}/partitioned-stats", perPartition="false")["partitions"] == {}
        assert len(rest.get(f"{ORDERS}/partitioned-internalStats")["partitions"]) == PARTITIONS
        assert len(rest.get(f"{ORDERS}/internal-info")["partitions"]) == PARTITIONS


def test_a_subscription_is_on_the_partitions_of_all_brokers(brokers: TwoBrokers) -> None:
    rest, other = brokers.rest, brokers.other_rest
    rest.do("PUT", f"{ORDERS}/subscription/billing", b'"earliest"')
    assert rest.ask("PUT", f"{ORDERS}/subscription/billing").status == 409
    assert other.get(f"{ORDERS}/subscriptions") == ["billing"]
    brokers.publish(3)
    assert backlog(rest) == 3 * PARTITIONS
    other.do("POST", f"{ORDERS}/subscription/billing/skip_all")
    assert backlog(rest) == 0
    rest.do("POST", f"{ORDERS}/subscription/billing/resetcursor", b'"earliest"')
    assert backlog(other) == 3 * PARTITIONS
    rest.do("POST", f"{ORDERS}/subscription/billing/resetcursor/0")
    brokers.cluster.world.sleep(100)
    other.do("POST", f"{ORDERS}/subscription/billing/expireMessages/60")
    assert backlog(rest) == 0
    other.do("PUT", f"{ORDERS}/subscription/billing/properties", b'{"team": "sales"}')
    assert rest.get(f"{ORDERS}/subscription/billing/properties") == {"team": "sales"}
    assert len(rest.get(f"{ORDERS}/subscription/billing/replicatedSubscriptionStatus")) == 8
    other.do("DELETE", f"{ORDERS}/subscription/billing")
    assert rest.get(f"{ORDERS}/subscriptions") == []
    assert rest.ask("DELETE", f"{ORDERS}/subscription/billing").status == 404
    assert rest.ask("POST", f"{ORDERS}/subscription/billing/skip_all").status == 404


def backlog(rest: Rest) -> int:
    stats = rest.get(f"{ORDERS}/partitioned-stats")
    return int(stats["subscriptions"]["billing"]["msgBacklog"])


def test_what_names_a_message_is_refused_for_a_partitioned_topic(brokers: TwoBrokers) -> None:
    rest = brokers.rest
    rest.do("PUT", f"{ORDERS}/subscription/billing")
    place = b'{"ledgerId": 1, "entryId": 0}'
    for refused in ("resetcursor", "expireMessages"):
        reply = rest.ask("POST", f"{ORDERS}/subscription/billing/{refused}", place)
        assert reply.status == 405, reply.body


def test_a_subscription_with_a_consumer_elsewhere_is_not_deleted(brokers: TwoBrokers) -> None:
    name = next(each for each in brokers.names if brokers.owner(each) is brokers.two)
    brokers.rest.do("PUT", f"{ORDERS}/subscription/billing")
    brokers.cluster.call(brokers.cluster.consumer(brokers.two, str(name), "billing"))
    refusal = brokers.rest.ask("DELETE", f"{ORDERS}/subscription/billing")
    assert refusal.status == 412 and b"connected consumers" in refusal.body
    for part in brokers.names:
        path = f"v2/persistent/public/default/{part.local}"
        assert brokers.rest.get(f"{path}/subscriptions") == ["billing"]
    brokers.rest.do("DELETE", f"{ORDERS}/subscription/billing", force="true")
    assert brokers.rest.get(f"{ORDERS}/subscriptions") == []


def test_new_partitions_have_the_subscriptions_wherever_they_are(brokers: TwoBrokers) -> None:
    at = b'{"ledgerId": -1, "entryId": -1, "properties": {"team": "sales"}}'
    brokers.rest.do("PUT", f"{ORDERS}/subscription/billing", at)
    brokers.other_rest.do("POST", f"{ORDERS}/partitions", b"20")
    for rest in (brokers.rest, brokers.other_rest):
        assert rest.get(f"{ORDERS}/partitions")["partitions"] == 20
        for number in range(20):
            path = f"v2/persistent/public/default/orders-partition-{number}"
            assert rest.get(f"{path}/subscriptions") == ["billing"]
            assert rest.get(f"{path}/subscription/billing/properties") == {"team": "sales"}
    assert brokers.rest.ask("POST", f"{ORDERS}/partitions", b"19").status == 422
    assert brokers.rest.ask("POST", f"{ORDERS}/partitions", b'"x"').status == 406


def test_a_topic_is_terminated_compacted_and_unloaded_everywhere(brokers: TwoBrokers) -> None:
    brokers.publish()
    brokers.rest.do("PUT", f"{ORDERS}/compaction")
    assert brokers.other_rest.get(f"{ORDERS}/compaction")["status"] in ("RUNNING", "SUCCESS")
    brokers.rest.do("PUT", f"{ORDERS}/unload")
    for broker in (brokers.one, brokers.two):
        assert not [n for n in broker.broker.topics.loaded_names() if n in brokers.names]
    ended = brokers.other_rest.do("POST", f"{ORDERS}/terminate/partitions")
    assert sorted(map(int, ended)) == list(range(PARTITIONS))


def test_a_topic_is_unloaded_where_it_is_served_whichever_broker_is_asked(
    brokers: TwoBrokers,
) -> None:
    brokers.publish()
    for name in brokers.names[:2]:
        brokers.rest.do("PUT", f"v2/persistent/public/default/{name.local}/unload")
    for broker in (brokers.one, brokers.two):
        left = broker.broker.topics.loaded_names()
        assert not [name for name in brokers.names[:2] if name in left]


def test_a_partitioned_topic_is_deleted_on_all_brokers(brokers: TwoBrokers) -> None:
    brokers.publish()
    name = next(each for each in brokers.names if brokers.owner(each) is brokers.two)
    consumer = brokers.cluster.call(brokers.cluster.consumer(brokers.two, str(name), "billing"))
    refusal = brokers.rest.ask("DELETE", f"{ORDERS}/partitions")
    assert refusal.status == 412 and b"connected" in refusal.body
    brokers.cluster.call(consumer.close())
    brokers.rest.do("DELETE", f"{ORDERS}/partitions")
    for rest in (brokers.rest, brokers.other_rest):
        assert rest.get("v2/persistent/public/default/partitioned") == []
        assert rest.get("v2/persistent/public/default") == []
        assert rest.ask("GET", f"{ORDERS}/partitioned-stats").status == 404
    for broker in (brokers.one, brokers.two):
        assert not [n for n in broker.broker.topics.loaded_names() if n in brokers.names]
    brokers.other_rest.do("PUT", f"{ORDERS}/partitions", b"3")
    assert brokers.rest.get(f"{ORDERS}/partitioned-stats")["msgInCounter"] == 0


def test_a_namespaces_backlog_and_subscriptions_are_cleared_on_all_brokers(
    brokers: TwoBrokers,
) -> None:
    brokers.rest.do("PUT", f"{ORDERS}/subscription/billing", b'"earliest"')
    brokers.publish()
    brokers.rest.do("POST", "v2/namespaces/public/default/clearBacklog/billing")
    assert backlog(brokers.rest) == 0
    brokers.rest.do("POST", f"{ORDERS}/subscription/billing/resetcursor", b'"earliest"')
    brokers.other_rest.do("POST", "v2/namespaces/public/default/clearBacklog")
    assert backlog(brokers.rest) == 0
    brokers.other_rest.do("POST", "v2/namespaces/public/default/unsubscribe/billing")
    assert brokers.rest.get(f"{ORDERS}/subscriptions") == []


def test_a_namespace_is_unloaded_on_all_brokers(brokers: TwoBrokers) -> None:
    brokers.publish()
    brokers.rest.do("PUT", "v2/namespaces/public/default/unload")
    for broker in (brokers.one, brokers.two):
        assert not [n for n in broker.broker.topics.loaded_names() if n in brokers.names]
        assert not [b for b in broker.ownership.owned() if b.namespace == "public/default"]
    stats = brokers.other_rest.get(f"{ORDERS}/partitioned-stats")  # loads partitions again
    assert len(stats["partitions"]) == PARTITIONS


def test_a_namespace_with_topics_on_several_brokers_is_deleted(brokers: TwoBrokers) -> None:
    rest, other = brokers.rest, brokers.other_rest
    rest.do("PUT", "v2/tenants/acme", b'{"allowedClusters": ["standalone"]}')
    rest.do("PUT", "v2/namespaces/acme/shop")
    for number in range(8):
        other.do("PUT", f"v2/persistent/acme/shop/item-{number}")
    rest.do("PUT", "v2/persistent/acme/shop/carts/partitions", b"8")
    assert rest.ask("DELETE", "v2/namespaces/acme/shop").status == 409
    other.do("DELETE", "v2/namespaces/acme/shop", force="true")
    assert rest.get("v2/namespaces/acme") == []
    rest.do("DELETE", "v2/tenants/acme")
    assert "acme" not in other.get("v2/tenants")


def test_a_namespace_leaves_no_bundles_behind(brokers: TwoBrokers) -> None:
    rest, tree = brokers.rest, brokers.cluster.life.tree
    for bundles in (7, 3):  # recreated with another number of bundles
        rest.do("PUT", "v2/namespaces/public/shop", b'{"bundles": {"numBundles": %d}}' % bundles)
        for either in (rest, brokers.other_rest):
            brokers.cluster.until(lambda: brokers.two.broker.topics.tenants.has_namespace(SHOP))
            assert either.get("v2/namespaces/public/shop/bundles")["numBundles"] == bundles
        for number in range(8):
            brokers.other_rest.do("PUT", f"v2/persistent/public/shop/item-{number}")
        rest.do("DELETE", "v2/namespaces/public/shop", force="true")
        brokers.cluster.until(lambda: not bundles_of(brokers, SHOP))
        brokers.cluster.until(lambda: not [path for path in tree.nodes if f"{SHOP}/0x" in path])
        assert f"/admin/local-policies/{SHOP}" not in tree.nodes
    refused = rest.ask("PUT", "v2/namespaces/public/many", b'{"bundles": {"numBundles": 5000}}')
    assert refused.status == 412 and b"4096" in refused.body


def test_no_topic_outlives_its_namespace_because_another_broker_knew_it_late(
    brokers: TwoBrokers,
) -> None:
    """The other broker begins to create a topic, and continues when the namespace is deleted."""
    rest, topics = brokers.rest, brokers.two.broker.topics
    rest.do("PUT", "v2/namespaces/public/shop")
    brokers.cluster.until(lambda: topics.tenants.has_namespace(SHOP))
    name = TopicName.parse(f"persistent://{SHOP}/late")
    brokers.cluster.take(brokers.two, name)
    may_go_on, load = asyncio.Event(), topics._load

    async def late(name: TopicName) -> object:
        await may_go_on.wait()
        return await load(name)

    topics._load = late  # type: ignore[method-assign, assignment]
    creating = brokers.two.node.create_task(topics.get(name, create=True), name="create")
    brokers.cluster.world.sleep(1.0)
    deleting = brokers.cluster.client.create_task(
        rest._ask(brokers.one.http_url, "DELETE", f"/admin/v2/namespaces/{SHOP}?force=true", b""),
        name="delete",
    )
    brokers.cluster.world.sleep(2.0)
    may_go_on.set()
    brokers.cluster.until(lambda: deleting.done() and creating.done())
    assert deleting.result().status == 204, deleting.result().body
    brokers.cluster.world.sleep(1.0)
    for broker in (brokers.one, brokers.two):
        assert not broker.broker.ledgers.exists(name.ledger_name)


def test_an_answer_about_all_brokers_is_not_given_without_one_of_them(brokers: TwoBrokers) -> None:
    brokers.rest.do("PUT", "v2/non-persistent/public/default/live")
    brokers.cluster.crash(brokers.two)  # its session continues for a while
    for path in ("v3/transactions/coordinatorStats", "v2/non-persistent/public/default"):
        refused = brokers.rest.ask("GET", path)
        assert refused.status == 503, (path, refused)
        assert b"does not answer" in refused.body
    brokers.cluster.world.sleep(10.0)
    assert brokers.rest.ask("GET", "v3/transactions/coordinatorStats").is_done


def test_a_broker_of_apache_pulsar_that_does_not_answer_is_left_out(brokers: TwoBrokers) -> None:
    zookeeper = brokers.one.membership._cluster._zookeeper
    path, value = "/loadbalance/brokers/apache:8080", b'{"webServiceUrl": "http://apache:8080"}'
    brokers.cluster.world.call(brokers.one.node, zookeeper.create(path, value, ephemeral=True))
    brokers.cluster.until(lambda: "apache:8080" in brokers.one.membership.others.others())
    assert brokers.rest.ask("GET", "v3/transactions/coordinatorStats").is_done


def test_of_two_brokers_that_create_the_same_topic_at_once_one_is_told_so(
    brokers: TwoBrokers,
) -> None:
    name = TopicName.parse("same")
    both = (brokers.one, brokers.two)
    creating = [
        each.node.create_task(each.broker.topics.create_partitioned(name, 3), name="create")
        for each in both
    ]
    brokers.cluster.until(lambda: all(each.done() for each in creating))
    refusals = [each.exception() for each in creating]
    assert sorted(map(type, refusals), key=str) == [type(None), Conflict], refusals


def test_a_partition_is_not_created_anew_while_its_topic_is_deleted(brokers: TwoBrokers) -> None:
    """A partition's broker learns of changes late, but knows of the topic's deletion before it
    deletes its partition.
    """
    topics = brokers.two.broker.topics
    partition = next(each for each in brokers.names if brokers.owner(each) is brokers.two)
    brokers.publish()
    known: list[bool] = []
    delete, refresh = topics.delete, topics.tenants._metadata._submit.__self__._refresh  # type: ignore[attr-defined]
    look = refresh._work

    async def late() -> None:
        await asyncio.sleep(0.5)
        await look()

    refresh._work = late

    async def noted(name: TopicName, force: bool = False) -> None:
        known.append(bool(topics.tenants.doomed_partitions(name.partitioned_name)))
        await delete(name, force)

    topics.delete = noted  # type: ignore[method-assign]
    brokers.rest.do("DELETE", f"{ORDERS}/partitions", force="true")
    assert known and all(known)
    assert not topics.exists(partition)


def test_lists_have_what_is_only_in_the_memory_of_another_broker(brokers: TwoBrokers) -> None:
    for number in range(8):
        brokers.rest.do("PUT", f"v2/non-persistent/public/default/live-{number}")
    wanted = sorted(f"non-persistent://public/default/live-{number}" for number in range(8))
    for rest in (brokers.rest, brokers.other_rest):
        assert rest.get("v2/non-persistent/public/default") == wanted
        listed = rest.get("v2/namespaces/public/default/topics", mode="NON_PERSISTENT")
        assert listed == wanted


def test_brokers_tell_the_same_of_the_cluster(brokers: TwoBrokers) -> None:
    answers = []
    for rest in (brokers.rest, brokers.other_rest):
        ids = rest.get("v2/brokers/standalone")
        assert len(ids) == 2
        owned = [rest.get(f"v2/brokers/standalone/{each}/ownedNamespaces") for each in ids]
        assert not set(owned[0]) & set(owned[1])
        answers.append((ids, rest.get("v2/brokers/leaderBroker"), owned))
        assert rest.ask("GET", "v2/brokers/standalone/nobody:1/ownedNamespaces").status == 404
    assert answers[0] == answers[1]


def test_a_coordinator_is_asked_wherever_it_is(brokers: TwoBrokers) -> None:
    brokers.cluster.serve_coordinator(brokers.two)
    txn = brokers.cluster.call(brokers.cluster.begin(brokers.two))
    most, least = txn.txn_id
    for rest in (brokers.rest, brokers.other_rest):
        listed = rest.get("v3/transactions/coordinators")
        assert listed == [{"id": 0, "brokerServiceUrl": brokers.two.broker.service_url}]
        assert rest.get("v3/transactions/coordinatorStats")["0"]["ongoingTxnSize"] == 1
        assert rest.get("v3/transactions/coordinatorStats", coordinatorId=0)["ongoingTxnSize"] == 1
        assert list(rest.get("v3/transactions/slowTransactions/0")) == [str(txn.txn_id)]
        found = rest.get(f"v3/transactions/transactionMetadata/{most}/{least}")
        assert found["status"] == "OPEN"
    brokers.rest.do("POST", f"v3/transactions/abortTransaction/{most}/{least}", reason="stuck")
    ended = brokers.other_rest.get(f"v3/transactions/timeline/{most}/{least}")
    assert "stuck" in ended["abortReason"]


def test_the_console_of_any_broker_shows_a_topic_of_another(brokers: TwoBrokers) -> None:
    name = next(each for each in brokers.names if brokers.owner(each) is brokers.two)
    brokers.publish()
    shown = brokers.rest.ask("GET", f"/console/topics/persistent/public/default/{name.local}")
    assert shown.status == 200, shown.body
    assert name.local.encode() in shown.body


def test_a_deletion_is_finished_by_the_topics_broker_alone(brokers: TwoBrokers) -> None:
    """A request to another broker is redirected, and starts nothing there."""
    name = next(each for each in brokers.names if brokers.owner(each) is brokers.two)
    brokers.publish()
    deletions = brokers.one.broker.topics.deletions
    started: list[object] = []
    deletions._start = lambda doomed, work: started.append(doomed)  # type: ignore[method-assign]
    doomed, theirs = Doomed(name), brokers.two.broker.topics.deletions

    async def decide() -> None:
        await theirs._metadata.put(doomed.key, doomed.encode())

    brokers.cluster.world.call(brokers.two.node, decide())
    brokers.cluster.until(lambda: deletions.concerns(name))
    with pytest.raises(NotServedHere):
        brokers.cluster.world.call(brokers.one.node, brokers.one.broker.topics.get(name))
    assert started == []


def test_messages_over_http_go_to_the_broker_of_their_partition() -> None:
    brokers = TwoBrokers(0)
    schema = json.dumps({"type": "STRING", "schema": "", "properties": {}})
    messages = [{"payload": "b3JkZXI="}] * 3
    body = json.dumps({"producerSchema": schema, "messages": messages}).encode()
    name = next(each for each in brokers.names if brokers.owner(each) is brokers.two)
    topics = "/topics/persistent/public/default"
    for path in (f"{topics}/{name.local}", f"{topics}/orders/partitions/{name.partition}"):
        published = brokers.rest.do("POST", path, body)["messagePublishResults"]
        assert [each["errorCode"] for each in published] == [0, 0, 0]
    assert brokers.rest.get(f"{ORDERS}/partitioned-stats")["msgInCounter"] == 6
    brokers.cluster.close()


def test_messages_over_http_for_partitions_elsewhere_are_refused_one_by_one(
    brokers: TwoBrokers,
) -> None:
    schema = json.dumps({"type": "STRING", "schema": "", "properties": {}})
    messages = [{"payload": "b3JkZXI="}] * PARTITIONS
    body = json.dumps({"producerSchema": schema, "messages": messages}).encode()
    answer = brokers.rest.do("POST", "/topics/persistent/public/default/orders", body)
    codes = [each["errorCode"] for each in answer["messagePublishResults"]]
    assert codes.count(0) == codes.count(1) == PARTITIONS // 2
    assert brokers.rest.get(f"{ORDERS}/partitioned-stats")["msgInCounter"] == PARTITIONS // 2
