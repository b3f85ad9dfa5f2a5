import asyncio
from typing import Any

import pytest
from scripted_broker import Peer, ScriptedBroker, refusal

from pybroker.client import (
    AlreadyClosed,
    AuthenticationError,
    AuthenticationToken,
    ConnectError,
    InvalidConfiguration,
    Timeout,
    aio,
)
from pybroker.client.connection.cluster import service_addresses
from pybroker.client.connection.connection import KEEP_ALIVE_S
from pybroker.wire import pulsar_api_pb2 as pb


def test_it_introduces_itself_with_what_it_can_do(broker: ScriptedBroker):
    async def work() -> None:
        client = aio.Client("pulsar://one:6650", AuthenticationToken("secret"))
        await client.get_topic_partitions("t")

    broker.run(work())
    (connect,) = broker.asked_for(pb.CommandConnect)
    assert connect.protocol_version == 21
    assert (connect.auth_method_name, connect.auth_data) == ("token", b"secret")
    assert connect.feature_flags.supports_auth_refresh


def test_a_challenge_is_answered_with_the_credentials_of_the_moment(broker: ScriptedBroker):
    tokens = iter(["first", "second"])

    async def work() -> None:
        client = aio.Client("pulsar://one:6650", AuthenticationToken(lambda: next(tokens)))
        await client.get_topic_partitions("t")
        broker.peer.say(pb.CommandAuthChallenge())
        await client.get_topic_partitions("t")

    broker.run(work())
    (response,) = broker.asked_for(pb.CommandAuthResponse)
    assert response.response.auth_data == b"second"


def test_a_supplier_of_credentials_that_fails_is_asked_again(broker: ScriptedBroker):
    turns = iter([None, "first", "second", None, "third"])

    def token() -> str:
        if (found := next(turns)) is None:
            raise OSError("the token's file is not there")
        return found

    async def work() -> bool:
        client = aio.Client("pulsar://one:6650", AuthenticationToken(token))
        producer = await client.create_producer("t")
        broker.peer.say(pb.CommandAuthChallenge())
        await asyncio.sleep(1)
        broker.peer.say(pb.CommandAuthChallenge())
        await asyncio.sleep(1)
        return bool(producer.is_connected())

    assert broker.run(work())
    connects = broker.asked_for(pb.CommandConnect)
    assert [connect.auth_data for connect in connects] == [b"first", b"third"]


def test_wrong_credentials_are_an_answer(broker: ScriptedBroker, client: Any):
    broker.answers["Connect"] = lambda *_: refusal(pb.AuthenticationError, "who are you?")
    with pytest.raises(AuthenticationError, match="who are you"):
        broker.run(client.get_topic_partitions("t"))


def test_one_connection_serves_everything_at_a_broker(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        await asyncio.gather(*(client.create_producer(f"t{i}") for i in range(5)))

    broker.run(work())
    assert len(broker.peers) == 1


def test_a_redirect_is_followed_with_its_authority(broker: ScriptedBroker, client: Any):
    def lookup(peer: Peer, body: Any) -> Any:
        here = peer.address == "two:6650"
        kind = pb.CommandLookupTopicResponse
        return kind(
            request_id=0,
            response=kind.Connect if here else kind.Redirect,
            authoritative=True,
            brokerServiceUrl="pulsar://two:6650",
        )

    broker.answers["LookupTopic"] = lookup
    broker.run(client.create_producer("t"))
    assert [peer.address for peer in broker.peers] == ["one:6650", "two:6650"]
    assert [each.authoritative for each in broker.asked_for(pb.CommandLookupTopic)] == [False, True]


def test_a_broker_behind_a_proxy_is_reached_through_it(broker: ScriptedBroker, client: Any):
    broker.answers["LookupTopic"] = lambda *_: pb.CommandLookupTopicResponse(
        request_id=0,
        response=pb.CommandLookupTopicResponse.Connect,
        brokerServiceUrl="pulsar://hidden:6650",
        proxy_through_service_url=True,
    )
    broker.run(client.create_producer("t"))
    assert [peer.address for peer in broker.peers] == ["one:6650", "one:6650"]
    assert broker.asked_for(pb.CommandConnect)[1].proxy_to_broker_url == "hidden:6650"


def test_a_broker_behind_a_proxy_is_reached_through_the_one_that_answers(broker: ScriptedBroker):
    broker.answers["LookupTopic"] = lambda *_: pb.CommandLookupTopicResponse(
        request_id=0,
        response=pb.CommandLookupTopicResponse.Connect,
        brokerServiceUrl="pulsar://hidden:6650",
        proxy_through_service_url=True,
    )
    broker.unreachable.add("one:6650")

    async def work() -> None:
        await aio.Client("pulsar://one:6650,two:6650").create_producer("t")

    broker.run(work())
    assert [peer.address for peer in broker.peers] == ["two:6650", "two:6650"]


@pytest.mark.parametrize("response", [pb.CommandLookupTopicResponse.Connect, 0])
@pytest.mark.parametrize(
    "named", ["pulsar://two:6650", "two:6650", "http://two:6650", "PULSAR://two:6650"]
)
def test_a_client_with_tls_follows_no_lookup_to_an_unencrypted_port(
    broker: ScriptedBroker, named: str, response: Any
):
    broker.answers["LookupTopic"] = lambda *_: pb.CommandLookupTopicResponse(
        request_id=0,
        response=response,
        brokerServiceUrl="pulsar://two:6650",
        brokerServiceUrlTls=named,
    )

    async def work() -> None:
        await aio.Client("pulsar+ssl://one:6651").create_producer("t")

    with pytest.raises(InvalidConfiguration, match="not encrypted"):
        broker.run(work())
    assert [peer.address for peer in broker.peers] == ["one:6651"]


def test_a_client_with_tls_reaches_a_broker_through_a_proxy_with_tls(broker: ScriptedBroker):
    broker.answers["LookupTopic"] = lambda *_: pb.CommandLookupTopicResponse(
        request_id=0,
        response=pb.CommandLookupTopicResponse.Connect,
        brokerServiceUrlTls="pulsar://hidden:6650",
        proxy_through_service_url=True,
    )

    async def work() -> None:
        await aio.Client("pulsar+ssl://one:6651").create_producer("t")

    broker.run(work())
    assert [peer.address for peer in broker.peers] == ["one:6651", "one:6651"]


def test_a_circle_of_redirects_ends(broker: ScriptedBroker, client: Any):
    broker.answers["LookupTopic"] = lambda *_: pb.CommandLookupTopicResponse(
        request_id=0,
        response=pb.CommandLookupTopicResponse.Redirect,
        brokerServiceUrl="pulsar://one:6650",
    )
    with pytest.raises(Exception, match="redirected 20 times"):
        broker.run(client.create_producer("t"))


def test_the_next_host_of_the_service_url_is_tried(broker: ScriptedBroker):
    broker.unreachable.add("one:6650")

    async def work() -> None:
        await aio.Client("pulsar://one:6650,two:6650").get_topic_partitions("t")

    broker.run(work())
    assert [peer.address for peer in broker.peers] == ["two:6650"]


def test_a_broker_that_cannot_be_reached_is_named_in_the_end(broker: ScriptedBroker, client: Any):
    broker.down = True

    async def work() -> None:
        with pytest.raises(ConnectError, match="Cannot connect to pulsar://one:6650"):
            await client.create_producer("t")
        assert asyncio.get_running_loop().time() == pytest.approx(30)

    broker.run(work())


def test_a_silent_broker_is_given_up(broker: ScriptedBroker, client: Any):
    broker.never_answers("Producer")
    with pytest.raises(Timeout):
        broker.run(client.create_producer("t"))
    assert len(broker.asked_for(pb.CommandCloseProducer)) == 1


def test_an_idle_connection_is_pinged_and_a_dead_one_dropped(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        await client.get_topic_partitions("t")
        peer = broker.peer
        broker.answers["Ping"] = lambda *_: pb.CommandPong()
        await asyncio.sleep(3 * KEEP_ALIVE_S)
        assert len(broker.asked_for(pb.CommandPing)) >= 2
        assert not peer.transport.is_closing()
        broker.never_answers("Ping")
        await asyncio.sleep(3 * KEEP_ALIVE_S)
        assert peer.transport.is_closing()

    broker.run(work())


def test_a_connection_lost_right_after_connected_is_not_pinged(broker: ScriptedBroker, client: Any):
    usual = broker.answers["Connect"]

    def connected_and_lost(peer: Any, body: Any) -> None:
        broker.answers["Connect"] = usual
        peer.say(usual(peer, body))
        asyncio.get_running_loop().call_soon(peer.lose)

    async def work() -> None:
        unhandled: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        broker.answers["Connect"] = connected_and_lost
        await client.get_topic_partitions("t")
        await asyncio.sleep(3 * KEEP_ALIVE_S)
        assert unhandled == []

    broker.run(work())


def test_the_brokers_ping_is_answered(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        await client.get_topic_partitions("t")
        broker.peer.say(pb.CommandPing())
        await client.get_topic_partitions("t")

    broker.run(work())
    assert len(broker.asked_for(pb.CommandPong)) == 1


def test_a_closed_client_refuses_and_lets_go_of_everything(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        producer = await client.create_producer("t")
        await client.subscribe("t", "s")
        await client.close()
        for refused in (client.create_producer("t"), producer.send(b"x"), client.new_transaction()):
            with pytest.raises(AlreadyClosed):
                await refused

    broker.run(work())
    assert len(broker.asked_for(pb.CommandCloseProducer)) == 1
    assert len(broker.asked_for(pb.CommandCloseConsumer)) == 1
    assert all(peer.transport.is_closing() for peer in broker.peers)


def test_service_urls():
    assert service_addresses("pulsar://a:1,b") == ["pulsar://a:1", "pulsar://b"]
    for wrong in ("localhost:6650", "http://localhost", "pulsar://"):
        with pytest.raises(InvalidConfiguration, match="must look like"):
            service_addresses(wrong)
