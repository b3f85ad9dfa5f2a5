"""The owners of transactions over several brokers, and how brokers authenticate to each other."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from credentials import TOKEN_SETTINGS, token
from txn_cluster import TxnBroker, TxnCluster

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import AuthorizationError, NotAllowed, ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import BrokerAddress
from pybroker.client.connection.auth import AuthenticationToken
from pybroker.client.options import InitialPosition
from pybroker.cluster.admin_client import AdminClient
from pybroker.cluster.transactions.broker_client import BadBrokerClient, peer_options
from pybroker.cluster.transactions.peers import PeerOptions, Peers
from pybroker.wire import pulsar_api_pb2 as pb

OWN_ROLE = {
    "broker_client_authentication_plugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "broker_client_authentication_parameters": f"token:{token('broker')}",
}


@pytest.fixture
def cluster() -> Iterator[TxnCluster]:
    cluster = TxnCluster(
        0,
        super_user_roles=("broker",),
        max_participants_per_principal=4,
        **TOKEN_SETTINGS,
        **OWN_ROLE,
    )
    yield cluster
    cluster.close()


def test_taking_part_in_another_roles_transaction_is_refused(cluster: TxnCluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.serve_coordinator(one)
    there = cluster.topic_of(two)

    async def intrude() -> None:
        txn = await cluster.client_at(one, "alice").new_transaction()
        orders = await cluster.client_at(two, "mallory").subscribe(
            there, "orders", initial_position=InitialPosition.Earliest
        )
        mallory = await cluster.client_at(two, "mallory").create_producer(there)
        await mallory.send(b"order")
        order = await orders.receive()
        # Alice's client adds the topic and the subscription, but mallory's connection uses them.
        joins = cluster.client_at(one, "alice").attach_transaction(txn.txn_id)
        with pytest.raises(AuthorizationError, match="another principal"):
            await orders.acknowledge(order, joins)  # broker two asks for the owner
        two.coordinators.remote(0).forget_open()  # type: ignore[union-attr]
        with pytest.raises(AuthorizationError, match="another principal"):
            await mallory.send(b"forged", txn=joins)
        alice = await cluster.client_at(two, "alice").create_producer(there)
        await alice.send(b"invoice", txn=txn)
        await txn.commit()
        assert (await orders.receive()).data() == b"invoice"

    cluster.call(intrude())


def test_another_role_makes_nothing_join_over_brokers(cluster: TxnCluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.serve_coordinator(one)
    there = cluster.topic_of(two)

    async def intrude() -> None:
        alice, mallory = (cluster.client_at(one, name) for name in ("alice", "mallory"))
        txn = await alice.new_transaction(namespace="public/default")
        sink = await mallory.create_producer(there)
        attached = mallory._transactions().attach(txn.txn_id, "public/default")
        with pytest.raises(AuthorizationError, match="another principal"):
            await sink.send(b"forged", txn=attached)
        assert not one.coordinators.has_partition(txn.txn_id, there)
        await (await alice.create_producer(there)).send(b"own", txn=txn)
        assert one.coordinators.has_partition(txn.txn_id, there)

    cluster.call(intrude())


def test_what_joins_over_brokers_counts_for_its_principal(cluster: TxnCluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.serve_coordinator(one)
    topics = [cluster.topic_of(two) + f"-{number}" for number in range(40)]
    there = [each for each in topics if two.ownership.owns(TopicName.parse(each))][:5]

    async def join() -> None:
        alice, bob = (cluster.client_at(two, name) for name in ("alice", "bob"))
        txn = await alice.new_transaction(namespace="public/default")
        sinks = [await alice.create_producer(each) for each in there]
        for sink in sinks[:4]:
            await sink.send(b"fits", txn=txn)
        with pytest.raises(NotAllowed, match="of alice would have more than 4"):
            await sinks[4].send(b"too much", txn=txn)
        theirs = await bob.new_transaction(namespace="public/default")
        await (await bob.create_producer(there[4])).send(b"fits", txn=theirs)

    cluster.call(join())


def asked_by(cluster: TxnCluster, broker: TxnBroker, role: str, command: Any) -> Any:
    """Send a brokers' command as a client with this role."""

    async def ask() -> Any:
        peers = Peers(PeerOptions(AuthenticationToken(token(role))))
        try:
            return await peers.request(BrokerAddress(broker.url), command)
        finally:
            await peers.close()

    return cluster.call(ask())


def test_without_authorization_a_client_that_poses_as_a_broker_makes_nothing_join(
    cluster: TxnCluster,
) -> None:
    one = cluster.start("one")
    cluster.serve_coordinator(one)
    there = cluster.topic_of(one)
    alice = cluster.client_at(one, "alice")
    txn_id = cluster.call(alice.new_transaction(namespace="public/default")).txn_id
    forged = pb.CommandAskTransaction(
        txnid_most_bits=txn_id.most, txnid_least_bits=txn_id.least, topic=there
    )
    for claimed in (None, "alice"):
        if claimed is not None:
            forged.principal = claimed
        with pytest.raises(NotAllowed, match="'mallory' may act in its own transactions only"):
            asked_by(cluster, one, "mallory", forged)
        assert not one.coordinators.has_partition(txn_id, there)
    assert asked_by(cluster, one, "broker", forged).takes_part
    assert one.coordinators.has_partition(txn_id, there)


def test_without_authorization_a_client_that_poses_as_a_broker_promises_nothing(
    cluster: TxnCluster,
) -> None:
    one = cluster.start("one")
    cluster.serve_coordinator(one)
    txn_id = cluster.call(cluster.client_at(one, "alice").new_transaction()).txn_id
    forged = pb.CommandTransactionGroup(
        step=pb.CommandTransactionGroup.PROMISE,
        txnid_most_bits=1,
        txnid_least_bits=0,
        member_most=[txn_id.most],
        member_least=[txn_id.least],
        principal="alice",
    )
    one.coordinators.count = 2
    with pytest.raises(NotAllowed, match="superUserRoles"):
        asked_by(cluster, one, "mallory", forged)
    assert one.coordinators.begun(txn_id).promised_to is None  # type: ignore[union-attr]


def test_only_brokers_act_for_producers_of_kafka(cluster: TxnCluster) -> None:
    one = cluster.start("one", serves_kafka=True)
    forged = pb.CommandKafkaTransaction(
        transactional_id="payments",
        owner="alice",
        producer_id=1,
        producer_epoch=0,
        topic=str(TopicName.parse("orders-partition-0")),
        adds=True,
    )
    with pytest.raises(NotAllowed, match="superUserRoles"):
        asked_by(cluster, one, "mallory", forged)
    assert asked_by(cluster, one, "broker", forged).kafka_error == 49  # there is none


def test_the_role_of_brokers_is_what_broker_conf_says() -> None:
    config = replace(BrokerConfig(), **OWN_ROLE)
    options = peer_options(config)
    assert options.authentication is not None
    assert options.authentication.data() == token("broker").encode()
    assert options.tls is None
    assert peer_options(replace(config, broker_client_tls_enabled=True)).tls is not None


@pytest.fixture
def renewable(tmp_path: Path) -> tuple[Authority, dict[str, Any]]:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker")
    return authority, {
        "broker_client_tls_enabled": True,
        "broker_client_trust_certs_file_path": str(authority.path),
        "broker_client_certificate_file_path": certificate,
        "broker_client_key_file_path": key,
    }


def test_a_reload_is_for_certificates_between_brokers_too(
    renewable: tuple[Authority, dict[str, Any]],
) -> None:
    authority, settings = renewable
    cluster = TxnCluster(0, **settings)
    one = cluster.start("one")
    tls = one.membership._peers.tls
    assert tls is not None

    async def reload() -> None:
        first = tls.context()
        one.broker.reload_credentials()
        assert tls.context() is first
        authority.issue("broker")
        one.broker.reload_credentials()
        assert tls.context() is not first

    cluster.world.call(one.node, reload())
    cluster.close()


def test_a_broker_is_not_asked_without_tls_where_brokers_use_tls(
    renewable: tuple[Authority, dict[str, Any]],
) -> None:
    options = peer_options(BrokerConfig(**renewable[1]))
    plain = BrokerAddress("pulsar://one:6650", "", "http://one:8080")
    only_tls = BrokerAddress("", "pulsar+ssl://one:6651", "", "https://one:8443")

    async def ask(options: PeerOptions, broker: BrokerAddress) -> tuple[str, str]:
        with pytest.raises(ServiceNotReady) as asked:
            await Peers(options).request(broker, pb.CommandAskTransaction())
        with pytest.raises(ServiceNotReady) as administered:
            await AdminClient(None, options).ask(broker, "GET", "/")  # type: ignore[arg-type]
        return str(asked.value), str(administered.value)

    assert asyncio.run(ask(options, plain)) == (
        "pulsar://one:6650 has no port with TLS, and brokerClientTlsEnabled=true: set "
        "brokerServicePortTls there",
        "http://one:8080 has no port with TLS, and brokerClientTlsEnabled=true: set "
        "webServicePortTls there",
    )
    for why in asyncio.run(ask(PeerOptions(), only_tls)):
        assert why.endswith("has no port without TLS: set brokerClientTlsEnabled=true")


def test_a_broker_that_hangs_leaves_room_to_ask_the_others() -> None:
    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    async def scenario() -> None:
        client = AdminClient(None, PeerOptions())  # type: ignore[arg-type]
        servers = [await asyncio.start_server(each, "127.0.0.1", 0) for each in (hangs, answers)]
        ports = [each.sockets[0].getsockname()[1] for each in servers]
        one, two = (BrokerAddress(http_url=f"http://127.0.0.1:{port}") for port in ports)
        stuck = [asyncio.ensure_future(client.ask(one, "GET", "/")) for _ in range(100)]
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert (await client.ask(two, "GET", "/")).status == 204
        for each in stuck:
            each.cancel()
        await asyncio.wait(stuck)
        for server in servers:
            server.close()

    asyncio.run(scenario())


def test_apaches_default_plugin_is_no_login() -> None:
    disabled = "org.apache.pulsar.client.impl.auth.AuthenticationDisabled"
    config = replace(BrokerConfig(), broker_client_authentication_plugin=disabled)
    assert peer_options(config).authentication is None


@pytest.mark.parametrize("key", ["authorization_enabled", "authentication_enabled"])
def test_a_cluster_whose_clients_log_in_needs_a_role_for_brokers(key: str) -> None:
    with pytest.raises(BadBrokerClient, match="superUserRoles"):
        peer_options(replace(BrokerConfig(), **{key: True}))


def test_brokers_may_be_anonymous_where_clients_may_and_nothing_is_authorized() -> None:
    config = BrokerConfig(authentication_enabled=True, anonymous_user_role="anybody")
    assert peer_options(config).authentication is None
    with pytest.raises(BadBrokerClient, match="superUserRoles"):
        peer_options(replace(config, authorization_enabled=True))


def test_unusable_credentials_are_explained() -> None:
    config = BrokerConfig(broker_client_authentication_plugin="Kerberos")
    with pytest.raises(BadBrokerClient, match="brokerClientAuthenticationPlugin"):
        peer_options(config)
    missing = BrokerConfig(
        broker_client_tls_enabled=True, broker_client_trust_certs_file_path="/nowhere"
    )
    with pytest.raises(BadBrokerClient, match="brokerClientTrustCertsFilePath"):
        peer_options(missing)


def test_sessions_of_different_roles_do_not_fence_each_other_over_brokers(
    cluster: TxnCluster,
) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.serve_coordinator(one)
    there = cluster.topic_of(two)
    first = {"txn.transactional.id": "billing", "txn.session": "first"}

    async def publish() -> None:
        alice, mallory = (cluster.client_at(one, name) for name in ("alice", "mallory"))
        own = await alice.create_producer(there, properties=first)
        txn = await alice.new_transaction()
        await own.send(b"invoice", txn=txn)
        begun = one.coordinators.begun(txn.txn_id)
        assert begun is not None
        assert begun.session is not None
        assert begun.session.id == ("alice", "billing")
        forged = await mallory.create_producer(there, properties={**first, "txn.session": "b"})
        unbound = await alice.new_transaction()
        stranger = alice.attach_transaction(unbound.txn_id)  # its client adds the topic
        with pytest.raises((AuthorizationError, NotAllowed), match="another principal"):
            await forged.send(b"forged", txn=stranger)
        found = one.coordinators.begun(unbound.txn_id)
        assert found is not None
        assert found.session is None
        await txn.commit()
        await own.send(b"on")

    cluster.call(publish())


def test_only_brokers_ask_to_fence_sessions() -> None:
    settings = {**TOKEN_SETTINGS, **OWN_ROLE, "authorization_enabled": True}
    cluster = TxnCluster(0, super_user_roles=("broker",), **settings)
    one = cluster.start("one")
    command = pb.CommandFenceSessions(transactional_id="billing", epoch=1)
    peers = Peers(PeerOptions(AuthenticationToken(token("alice"))))

    async def ask() -> None:
        with pytest.raises(AuthorizationError, match="fence sessions"):
            await peers.request(BrokerAddress(one.url), command)
        await peers.close()

    cluster.call(ask())
    cluster.close()
