"""Permissions of roles, through clients: granted, revoked, by topic, by subscription, in
transactions.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pulsar
import pytest
from credentials import token
from permission_world import FORBIDDEN, SETTINGS, World
from raw_client import RawClient

import pybroker.testing
from pybroker.base.errors import AuthorizationError
from pybroker.base.names import TxnId
from pybroker.base.runtime import Pace
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.client.errors import PulsarException
from pybroker.security.authorization import ACTIONS, Authorizer, Target
from pybroker.server import guarded
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand


# -- grants


def test_a_role_may_do_nothing_before_it_is_granted(world: World) -> None:
    assert not world.may_produce("alice")
    assert not world.may_consume("alice")


def test_a_refusal_repeats_of_a_long_name_its_beginning(world: World) -> None:
    body = pb.CommandGetTopicsOfNamespace(namespace="n" * 1_000_000)
    with world.raw("nobody") as client:
        refused = client.request(_T.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", body)
    assert refused.error == FORBIDDEN
    assert len(refused.message) < 3000


def test_each_action_allows_what_it_says(world: World) -> None:
    world.grant("writer", "produce")
    world.grant("reader", "consume")
    assert (world.may_produce("writer"), world.may_consume("writer")) == (True, False)
    assert (world.may_produce("reader"), world.may_consume("reader")) == (False, True)


def test_a_superuser_and_the_tenants_admin_need_no_grant(world: World) -> None:
    for role in ("admin", "boss"):
        assert world.may_produce(role)
        assert world.may_consume(role)


def test_another_tenants_admin_may_nothing(world: World, broker: RunningBroker) -> None:
    other = World(broker)
    world.admin("POST", f"tenants/{other.tenant}", {"adminRoles": ["other-boss"]}, by="admin")
    assert not world.may_produce("other-boss")
    path = f"namespaces/{world.namespace}/permissions"
    assert world.ask("GET", path, by="other-boss").status_code == 403


def test_permissions_have_apaches_shapes(world: World) -> None:
    world.grant("alice", *ACTIONS)
    world.grant("bob", "consume", "consume")
    path = f"namespaces/{world.namespace}/permissions"
    assert world.admin("GET", path) == {"alice": list(ACTIONS), "bob": ["consume"]}
    world.revoke("alice")
    world.revoke("alice")
    assert world.admin("GET", path) == {"bob": ["consume"]}
    assert world.admin("GET", f"namespaces/{world.namespace}")["auth_policies"] == {
        "namespace_auth": {"bob": ["consume"]},
        "destination_auth": {},
        "subscription_auth_roles": {},
    }


@pytest.mark.parametrize("body", [["fly"], "produce", {"produce": 1}, [1], None, 7], ids=repr)
def test_what_is_no_action_is_refused(world: World, body: Any) -> None:
    path = f"namespaces/{world.namespace}/permissions/alice"
    assert world.ask("POST", path, body).status_code == 400


def test_permissions_survive_a_restart_and_end_with_the_namespace() -> None:
    with pybroker.testing.broker(http=True, **SETTINGS) as running:
        world = World(running)
        world.grant("alice", "produce")
        running.kill_and_restart()
        assert world.may_produce("alice")
        world.admin("DELETE", f"namespaces/{world.namespace}?force=true")
        world.admin("PUT", f"namespaces/{world.namespace}", {})
        assert not world.may_produce("alice")


def test_a_grant_without_authorization_is_not_implemented() -> None:
    with pybroker.testing.broker(http=True) as running:
        url = f"{running.admin_url}/admin/v2/namespaces/public/default/permissions"
        assert httpx.post(url + "/alice", json=["produce"]).status_code == 501
        assert httpx.get(url).json() == {}


# -- topics


def test_a_grant_on_a_topic_is_for_that_topic(world: World) -> None:
    path = world.on_topic("/permissions/alice")
    world.admin("POST", path, ["produce"])
    assert world.may_produce("alice")
    assert not world.may_produce("alice", world.topic + "2")
    assert world.admin("GET", world.on_topic("/permissions")) == {"alice": ["produce"]}
    world.admin("DELETE", path)
    assert not world.may_produce("alice")
    assert world.ask("DELETE", path).status_code == 412


def test_a_grant_on_a_topic_ends_with_the_topic(world: World) -> None:
    for kind, size in (("", None), ("/partitions", 2)):
        path = world.on_topic(kind)
        world.admin("PUT", path, size)
        world.admin("POST", world.on_topic("/permissions/alice"), ["produce"])
        world.admin("DELETE", path)
        world.admin("PUT", path, size)
        assert world.admin("GET", world.on_topic("/permissions")) == {}
        world.admin("DELETE", path)


def test_a_grant_on_a_partition_ends_with_the_partitioned_topic(world: World) -> None:
    world.admin("PUT", world.on_topic("/partitions"), 2)
    for topic in ("t-partition-1", "other"):
        world.admin("POST", world.on_topic("/permissions/alice", topic), ["produce"])
    world.admin("DELETE", world.on_topic("/partitions"))
    assert not world.may_produce("alice", f"{world.topic}-partition-1")
    assert world.may_produce("alice", f"persistent://{world.namespace}/other")


def test_a_grant_on_a_partitioned_topic_is_for_its_partitions(world: World) -> None:
    world.admin("PUT", world.on_topic("/partitions", "p"), 2)
    world.admin("POST", world.on_topic("/permissions/alice", "p"), ["produce"])
    assert world.may_produce("alice", f"persistent://{world.namespace}/p-partition-1")


def test_topic_and_namespace_are_shown_together(world: World) -> None:
    world.grant("alice", "consume")
    world.admin("POST", world.on_topic("/permissions/alice"), ["produce"])
    shown = world.admin("GET", world.on_topic("/permissions"))
    assert shown == {"alice": ["consume", "produce"]}


def test_many_topics_are_granted_together_or_not_at_all(world: World) -> None:
    mine = {"topic": world.topic, "role": "alice", "actions": ["produce"]}
    foreign = mine | {"topic": "persistent://public/default/t"}
    path = "namespaces/grantPermissionsOnTopics"
    assert world.ask("POST", path, [mine, foreign]).status_code == 403
    assert not world.may_produce("alice")
    world.admin("POST", path, [mine])
    assert world.may_produce("alice")
    world.admin("POST", "namespaces/revokePermissionsOnTopics", [mine])
    assert not world.may_produce("alice")


# -- subscriptions


def test_a_subscription_that_names_roles_is_theirs(world: World) -> None:
    world.grant("alice", "consume")
    world.grant("bob", "consume")
    path = f"namespaces/{world.namespace}/permissions"
    world.admin("POST", f"{path}/subscription/s", ["alice"])
    assert world.admin("GET", f"{path}/subscription") == {"s": ["alice"]}
    assert world.may_consume("alice")
    assert not world.may_consume("bob")
    assert world.may_consume("bob", "other")
    for route in ("subscription/s/skip_all", "subscription/s/resetcursor/0"):
        answer = world.ask("POST", world.on_topic(f"/{route}"), by="bob")
        assert answer.status_code == 401
    world.admin("DELETE", f"{path}/s/alice")
    assert world.may_consume("bob")


def test_subscriptions_begin_with_the_roles_name_where_that_is_the_mode(world: World) -> None:
    world.grant("alice", "consume")
    world.admin("POST", f"namespaces/{world.namespace}/subscriptionAuthMode", "Prefix")
    assert world.may_consume("alice", "alice-1")
    assert not world.may_consume("alice", "other")
    world.admin("POST", f"namespaces/{world.namespace}/subscriptionAuthMode", "None")
    assert world.may_consume("alice", "other")


def test_every_subscription_of_a_namespace_is_its_admins_business(world: World) -> None:
    """A role without access to a subscription must not reach it through "all of them"."""
    world.grant("bob", "consume")
    of_topic = world.on_topic("/all_subscription/expireMessages/1")
    assert world.ask("POST", of_topic, by="bob").status_code == 401
    of_namespace = f"namespaces/{world.namespace}/clearBacklog"
    assert world.ask("POST", of_namespace, by="bob").status_code == 403


# -- revoked while connected


def test_a_producer_whose_permission_is_revoked_is_closed(world: World) -> None:
    world.grant("alice", "produce")
    with world.client("alice", operation_timeout_seconds=1) as client:
        producer = client.create_producer(world.topic)
        producer.send(b"x")
        world.revoke("alice")
        with pytest.raises(PulsarException):
            producer.send(b"y")
    assert messages(world) == [b"x"]


def messages(world: World) -> list[bytes]:
    with world.client("boss") as client:
        reader = client.create_reader(world.topic, pybroker.client.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(5000).data())
        return found


def test_when_a_revocation_is_answered_nothing_more_is_taken(world: World) -> None:
    world.grant("alice", "produce", "consume")
    with world.raw("alice") as client:
        made = pb.CommandProducer(topic=world.topic, producer_id=1)
        client.request(_T.PRODUCER, "producer", made)
        subscribe = pb.CommandSubscribe(
            topic=world.topic, subscription="s", subType=pb.CommandSubscribe.Shared, consumer_id=2
        )
        client.request(_T.SUBSCRIBE, "subscribe", subscribe)
        world.grant("alice", "consume")
        assert client.kinds_before_pong() == [_T.CLOSE_PRODUCER]
        world.admin("POST", f"namespaces/{world.namespace}/permissions/subscription/s", ["bob"])
        assert client.kinds_before_pong() == [_T.CLOSE_CONSUMER]


def watch(client: RawClient, namespace: str) -> Any:
    asked = pb.CommandWatchTopicList(
        namespace=namespace, watcher_id=1, topics_pattern=f"{namespace}/.*"
    )
    return client.request(_T.WATCH_TOPIC_LIST, "watchTopicList", asked)


def test_who_may_no_longer_hears_of_no_more_topics(world: World) -> None:
    world.grant("alice", "consume")
    with world.raw("alice") as alice, world.raw("boss") as boss:
        for client in (alice, boss):
            assert isinstance(watch(client, world.namespace), pb.CommandWatchTopicListSuccess)
        world.revoke("alice")
        world.admin("PUT", world.on_topic(topic="secret"))
        assert boss.receive(_T.WATCH_TOPIC_UPDATE).new_topics == [
            f"persistent://{world.namespace}/secret"
        ]
        assert alice.kinds_before_pong() == []
        assert watch(alice, world.namespace).error == FORBIDDEN


def test_others_are_served_while_all_that_a_connection_has_is_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    class Counted(Pace):
        async def step(self, steps_: int = 1) -> None:
            steps.append(steps_)
            await super().step(steps_)

    monkeypatch.setattr(guarded, "Pace", Counted)
    world.grant("alice", "produce")
    with world.raw("alice") as client:
        for number in range(20):
            made = pb.CommandProducer(topic=world.topic, producer_id=number)
            client.request(_T.PRODUCER, "producer", made)
        steps.clear()
        world.revoke("alice")
        assert client.kinds_before_pong() == [_T.CLOSE_PRODUCER] * 20
    assert len(steps) > 20
    assert set(steps) == {1}


def test_only_the_admitted_waiter_is_checked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []

    def counted(authorizer: Authorizer, identity: Any, need: Any, target: Target) -> bool:
        looked_at.append(target)
        return may(authorizer, identity, need, target)

    may = Authorizer.may
    world.grant("alice", "produce")
    monkeypatch.setattr(Authorizer, "may", counted)
    with world.raw("alice") as client:
        for number in range(20):
            made = pb.CommandProducer(topic=world.topic, producer_id=number)
            client.request(_T.PRODUCER, "producer", made)
    assert len(looked_at) == 20


def test_who_came_in_while_the_permission_went_is_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.grant("alice", "produce")
    monkeypatch.setattr(Authorizer, "may", lambda *_: False)
    with world.raw("alice") as client:
        made = pb.CommandProducer(topic=world.topic, producer_id=1)
        client.request(_T.PRODUCER, "producer", made)
        assert client.kinds_before_pong() == [_T.CLOSE_PRODUCER]


def test_a_producer_that_loses_its_permission_while_admitted_blocks_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For instance while pending acknowledgements of the subscription are replayed."""
    world.grant("alice", "consume")
    replayed, revoked = Subscription.replayed, []

    async def slowly(subscription: Subscription) -> None:
        await replayed(subscription)
        if not revoked:
            revoked.append(True)
            running = world.broker._broker
            assert running is not None
            await running.permissions.revoke(world.namespace, "alice")
            await running._permissions_applied()

    monkeypatch.setattr(Subscription, "replayed", slowly)
    alone = pb.CommandSubscribe(
        topic=world.topic, subscription="s", consumer_id=1, subType=pb.CommandSubscribe.Exclusive
    )
    with world.raw("alice") as client:
        refused = client.request(_T.SUBSCRIBE, "subscribe", alone)
    assert isinstance(refused, pb.CommandError)
    assert revoked
    with world.raw("boss") as client:
        let_in = client.request(_T.SUBSCRIBE, "subscribe", alone)
    assert isinstance(let_in, pb.CommandSuccess), let_in


def test_the_connection_of_a_former_admin_is_closed(world: World) -> None:
    with world.raw("boss") as client:
        made = pb.CommandProducer(topic=world.topic, producer_id=1)
        client.request(_T.PRODUCER, "producer", made)
        world.admin("POST", f"tenants/{world.tenant}", {"adminRoles": []}, by="admin")
        assert client.kinds_before_pong() == [_T.CLOSE_PRODUCER]


def test_the_official_client_is_told_what_it_may_not(world: World) -> None:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    who = pulsar.AuthenticationToken(token("alice"))
    client = pulsar.Client(world.broker.service_url, authentication=who, logger=quiet)
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(world.topic)
    world.grant("alice", "produce")
    producer = client.create_producer(world.topic)
    producer.send(b"x")
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe(world.topic, "s")
    client.close()


# -- proxies


def test_behind_a_proxy_both_must_be_permitted(world: World) -> None:
    def may(original: str) -> bool:
        with world.raw("proxy", original_principal=original) as client:
            body = pb.CommandProducer(topic=world.topic, producer_id=1)
            found = client.request(_T.PRODUCER, "producer", body)
            return isinstance(found, pb.CommandProducerSuccess)

    world.grant("alice", "produce")
    assert not may("alice")
    world.grant("proxy", "produce")
    assert may("alice")
    assert not may("bob")


# -- transactions


@pytest.fixture
def txn(world: World) -> Iterator[tuple[RawClient, TxnId]]:
    world.grant("alice", "produce", "consume")
    world.grant("bob", "produce", "consume")
    with world.raw("alice") as client:
        yield client, client.new_txn()


def test_only_the_owner_or_a_superuser_changes_a_transaction(
    world: World, txn: tuple[RawClient, TxnId]
) -> None:
    _, txn_id = txn
    with world.raw("bob") as bob, world.raw("boss") as boss, world.raw("admin") as admin:
        for other in (bob, boss):
            assert other.add_partition(txn_id, world.topic).HasField("error")
            assert other.add_subscription(txn_id, world.topic, "s").HasField("error")
            assert other.end(txn_id, commit=True).HasField("error")
        assert not admin.end(txn_id, commit=False).HasField("error")


def test_a_role_of_its_namespace_alone_uses_transactions(world: World) -> None:
    world.grant("alice", "produce", "consume")
    with world.client("alice", enable_transaction=True) as client:
        producer = client.create_producer(world.topic)
        with client.new_transaction(timeout_ms=10_000) as open_txn:
            producer.send(b"x", txn=open_txn)
    assert messages(world) == [b"x"]


def test_each_participant_needs_its_permission(
    world: World, txn: tuple[RawClient, TxnId], broker: RunningBroker
) -> None:
    alice, txn_id = txn
    other = World(broker)
    assert alice.add_partition(txn_id, other.topic).error == FORBIDDEN
    assert alice.add_subscription(txn_id, other.topic, "s").error == FORBIDDEN
    assert not alice.end(txn_id, commit=True).HasField("error")


def test_too_many_participants_are_refused_before_one_of_them_is_looked_at(
    txn: tuple[RawClient, TxnId],
) -> None:
    alice, txn_id = txn
    named = {"txnid_most_bits": txn_id.most, "txnid_least_bits": txn_id.least}
    partitions = pb.CommandAddPartitionToTxn(partitions=["no topic://"] * 1001, **named)
    found = alice.request(_T.ADD_PARTITION_TO_TXN, "addPartitionToTxn", partitions)
    assert "send at most 1000" in found.message
    subscription = pb.Subscription(topic="no topic://", subscription="s")
    subscriptions = pb.CommandAddSubscriptionToTxn(subscription=[subscription] * 1001, **named)
    found = alice.request(_T.ADD_SUBSCRIPTION_TO_TXN, "addSubscriptionToTxn", subscriptions)
    assert "send at most 1000" in found.message


def test_sending_or_acknowledging_in_anothers_transaction_is_refused(
    world: World, txn: tuple[RawClient, TxnId]
) -> None:
    alice, txn_id = txn
    with world.client("alice", enable_transaction=True) as client:
        client.create_producer(world.topic).send(b"before")
    assert not alice.add_partition(txn_id, world.topic).HasField("error")
    with world.client("bob", enable_transaction=True) as bob:
        producer = bob.create_producer(world.topic)
        foreign = bob.attach_transaction(txn_id)
        with pytest.raises((AuthorizationError, PulsarException)):
            producer.send(b"smuggled", txn=foreign)
    assert not alice.end(txn_id, commit=True).HasField("error")
    assert messages(world) == [b"before"]


def test_an_acknowledgement_in_anothers_transaction_is_refused(
    world: World, txn: tuple[RawClient, TxnId]
) -> None:
    _, txn_id = txn
    with world.raw("bob") as bob:
        subscribe = pb.CommandSubscribe(
            topic=world.topic, subscription="s", subType=pb.CommandSubscribe.Shared, consumer_id=2
        )
        bob.request(_T.SUBSCRIBE, "subscribe", subscribe)
        body = pb.CommandAck(
            consumer_id=2,
            ack_type=pb.CommandAck.Individual,
            txnid_most_bits=txn_id.most,
            txnid_least_bits=txn_id.least,
        )
        body.message_id.add(ledgerId=0, entryId=0)
        assert bob.request(_T.ACK, "ack", body).error == FORBIDDEN


# -- wildcards


def test_wildcards_match_roles_where_they_are_allowed() -> None:
    settings = SETTINGS | {"authorization_allow_wildcards_matching": True}
    with pybroker.testing.broker(http=True, **settings) as running:
        world = World(running)
        world.grant("app-*", "produce")
        world.grant("*.prod", "consume")
        assert world.may_produce("app-1")
        assert not world.may_produce("other-app-1")
        assert world.may_consume("x.prod")
        assert not world.may_consume("x.prod.not")


def test_without_wildcards_a_star_is_a_name(world: World) -> None:
    world.grant("app-*", "produce")
    assert not world.may_produce("app-1")
