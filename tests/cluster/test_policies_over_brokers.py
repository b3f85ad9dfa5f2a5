"""Policies and permissions changed at one broker take effect at all brokers at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from credentials import TOKEN_SETTINGS, token
from documents import ROOT, blocks
from rest import Rest
from txn_cluster import TxnCluster

from pybroker.base.configuration.config_file import load_config
from pybroker.base.errors import PulsarError
from pybroker.base.names import TopicName
from pybroker.cluster.transactions.broker_client import peer_options

NAMESPACE = "v2/namespaces/public/default"
OWN_ROLE = {
    "broker_client_authentication_plugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "broker_client_authentication_parameters": f"token:{token('broker')}",
}


@pytest.fixture
def cluster() -> Iterator[TxnCluster]:
    cluster = TxnCluster(0, serves_http=True)
    yield cluster
    cluster.close()


@pytest.fixture
def guarded() -> Iterator[TxnCluster]:
    cluster = TxnCluster(
        0,
        serves_http=True,
        authorization_enabled=True,
        super_user_roles=("broker", "admin"),
        **TOKEN_SETTINGS,
        **OWN_ROLE,
    )
    yield cluster
    cluster.close()


def test_a_namespaces_policy_reaches_the_topics_of_another_broker(cluster: TxnCluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    name = TopicName.parse(cluster.topic_of(two))
    cluster.call(cluster.send(two, str(name), b"x"))
    topic = two.broker.topics.serving(name)
    assert topic is not None
    Rest(cluster, one).do("POST", f"{NAMESPACE}/maxConsumersPerTopic", b"1")
    cluster.world.sleep(1)  # the watch
    cluster.call(cluster.consumer(two, str(name), "first"))
    with pytest.raises(PulsarError):
        cluster.call(cluster.consumer(two, str(name), "second"))


def test_a_topics_policy_is_set_at_any_broker(cluster: TxnCluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    name = TopicName.parse(cluster.topic_of(two))
    cluster.call(cluster.send(two, str(name), b"x"))
    path = f"v2/persistent/public/default/{name.local}/maxConsumers"
    Rest(cluster, one).do("POST", path, b"1")
    cluster.world.sleep(1)  # the watch
    assert Rest(cluster, two).get(path) == 1
    cluster.call(cluster.consumer(two, str(name), "first"))
    with pytest.raises(PulsarError):
        cluster.call(cluster.consumer(two, str(name), "second"))


def test_a_permission_that_is_revoked_at_one_broker_closes_producers_at_another(
    guarded: TxnCluster,
) -> None:
    one, two = guarded.start("one"), guarded.start("two")
    admin = Rest(guarded, one, "admin")
    admin.do("POST", f"{NAMESPACE}/permissions/alice", b'["produce"]')
    there = guarded.topic_of(two)
    producer = guarded.call(guarded.client_at(two, "alice").create_producer(there))
    guarded.call(producer.send(b"x"))
    admin.do("DELETE", f"{NAMESPACE}/permissions/alice")
    guarded.world.sleep(1)  # the watch
    with pytest.raises(PulsarError):
        guarded.call(producer.send(b"x"))
    with pytest.raises(PulsarError):
        guarded.call(guarded.client_at(two, "alice").create_producer(there))


def test_with_authorization_brokers_ask_each_other_and_users_only_what_they_may(
    guarded: TxnCluster,
) -> None:
    one, two = guarded.start("one"), guarded.start("two")
    admin = Rest(guarded, one, "admin")
    orders = "v2/persistent/public/default/orders"
    admin.do("PUT", f"{orders}/partitions", b"8")
    for number in range(8):
        guarded.take((one, two)[number % 2], TopicName.parse("orders").partition_at(number))
    assert len(admin.get(f"{orders}/partitioned-stats")["partitions"]) == 8
    mallory = Rest(guarded, one, "mallory")
    for path in ("partitioned-stats", "subscriptions"):
        assert mallory.ask("GET", f"{orders}/{path}").status in (401, 403)
    assert mallory.ask("DELETE", f"{orders}/partitions").status in (401, 403)
    admin.do("POST", f"{NAMESPACE}/permissions/alice", b'["produce", "consume"]')
    guarded.world.sleep(1)  # the watch
    alice = Rest(guarded, two, "alice")
    alice.do("PUT", f"{orders}/subscription/billing")
    assert alice.get(f"{orders}/subscriptions") == ["billing"]
    admin.do("DELETE", f"{orders}/partitions", force="true")


def test_the_documented_settings_are_the_role_of_brokers(tmp_path: Path) -> None:
    text = next(b.text for b in blocks(ROOT / "docs/cluster.md") if "brokerClient" in b.text)
    role = tmp_path / "broker.token"
    role.write_text(token("broker"))
    conf = tmp_path / "broker.conf"
    conf.write_text(text.replace("/etc/pybroker/broker.token", str(role)))
    config = load_config(conf)
    options = peer_options(config)
    assert options.authentication is not None and "broker" in config.super_user_roles
    assert options.authentication.data() == token("broker").encode()


def test_a_transaction_is_shown_to_its_owner_by_any_broker(guarded: TxnCluster) -> None:
    one, two = guarded.start("one"), guarded.start("two")
    guarded.serve_coordinator(two)
    txn = guarded.call(guarded.client_at(two, "alice").new_transaction())
    most, least = txn.txn_id
    path = f"v3/transactions/transactionMetadata/{most}/{least}"
    assert Rest(guarded, one, "alice").get(path)["owner"] == "alice"
    assert Rest(guarded, one, "admin").get(path)["owner"] == "alice"
    assert Rest(guarded, one, "mallory").ask("GET", path).status in (401, 403)


@pytest.mark.slow
def test_a_list_of_transactions_over_brokers_shows_to_each_its_own(guarded: TxnCluster) -> None:
    one, two = guarded.start("one"), guarded.start("two")
    guarded.serve_coordinator(two)

    async def begin() -> None:
        for role in ("app", "application"):
            await guarded.client_at(two, role).new_transaction(60_000)

    guarded.call(begin())
    for role, owners in (("app", {"app"}), ("admin", {"app", "application"})):
        for broker in (one, two):
            found = Rest(guarded, broker, role).get("v3/transactions/live")
            assert {each["owner"] for each in found["transactions"]} == owners
            assert (found["live"], found["matching"]) == (len(owners), len(owners))


def test_a_broker_says_once_that_it_does_not_read_apache_pulsars_policies_of_topics(
    cluster: TxnCluster, caplog: pytest.LogCaptureFixture
) -> None:
    one = cluster.start("one")
    names = [TopicName.parse(f"persistent://public/default/t{number}") for number in range(20)]
    for name in names:
        cluster.take(one, name)
    assert "topicPolicies" not in caplog.text
    cluster.call(cluster.send(one, "persistent://public/default/__change_events", b"x"))
    two = cluster.start("two")
    cluster.crash(one)
    for name in names:
        cluster.take(two, name)
    warnings = [each for each in caplog.messages if "topicPolicies" in each]
    assert len(warnings) == 1 and "have served public/default:" in warnings[0]
