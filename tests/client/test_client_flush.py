"""flush raises for any failed pending message, for callers that send without a callback."""

import asyncio
from typing import Any

import pytest
from scripted_broker import Peer, ScriptedBroker, Sent, receipt, turns

from pybroker.client import MessageTooBig, NotAllowed
from pybroker.wire import pulsar_api_pb2 as pb


def refusal_of(sent: Sent) -> pb.CommandSendError:
    return pb.CommandSendError(
        producer_id=sent.producer_id,
        sequence_id=sent.sequence_id,
        error=pb.NotAllowedError,
        message="not here",
    )


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_it_raises_what_any_of_them_met(broker: ScriptedBroker, client: Any, wrong: int):
    broker.on_send = lambda peer, sent: (
        refusal_of(sent) if sent.sequence_id == wrong else receipt(sent)
    )

    async def work() -> None:
        producer = await client.create_producer("t")
        for _ in range(3):
            producer.send_async(b"x")
        with pytest.raises(NotAllowed, match="not here"):
            await producer.flush()
        await producer.flush()

    broker.run(work())


def test_it_raises_what_became_of_the_open_batch(broker: ScriptedBroker, client: Any):
    broker.answers["Connect"] = lambda *_: pb.CommandConnected(
        server_version="scripted", max_message_size=1000
    )

    async def work() -> None:
        producer = await client.create_producer("t", batching_enabled=True)
        producer.send_async(bytes(2000))
        with pytest.raises(MessageTooBig):
            await producer.flush()
        producer.send_async(b"x")
        await producer.flush()

    broker.run(work())


def test_it_waits_for_what_is_ahead_of_what_was_refused(broker: ScriptedBroker, client: Any):
    held: list[Sent] = []

    def refuses_the_last(peer: Peer, sent: Sent) -> Any:
        if sent.sequence_id == 1:
            return refusal_of(sent)
        held.append(sent)
        return None

    broker.on_send = refuses_the_last

    async def work() -> None:
        producer = await client.create_producer("t")
        producer.send_async(b"x")
        producer.send_async(b"y")
        flushing = asyncio.create_task(producer.flush())
        await turns()
        assert not flushing.done()
        broker.peer.say(receipt(held[0]))
        with pytest.raises(NotAllowed):
            await flushing

    broker.run(work())


def test_it_waits_for_all_partitions_though_one_refuses(broker: ScriptedBroker, client: Any):
    held: list[Sent] = []

    def one_refuses(peer: Peer, sent: Sent) -> Any:
        if sent.producer_id == 1:
            return refusal_of(sent)
        held.append(sent)
        return None

    broker.on_send = one_refuses

    async def work() -> None:
        producer = await client.create_producer("parts")
        for _ in range(3):
            producer.send_async(b"x")
        flushing = asyncio.create_task(producer.flush())
        await turns()
        assert not flushing.done()
        for sent in held:
            broker.peer.say(receipt(sent))
        with pytest.raises(NotAllowed):
            await flushing

    broker.run(work())


@pytest.mark.parametrize("properties", [None, {"key": 7}])
def test_it_raises_earlier_refusals_of_sends_without_a_callback(
    broker: ScriptedBroker, client: Any, properties: Any
):
    """A message that is too large, or has invalid properties, is never sent."""
    broker.answers["Connect"] = lambda *_: pb.CommandConnected(
        server_version="scripted", max_message_size=1000
    )

    async def work() -> None:
        producer = await client.create_producer("t")
        content = b"x" if properties else bytes(2000)
        producer.send_async(content, properties=properties)
        producer.send_async(b"small")
        with pytest.raises((MessageTooBig, TypeError)):
            await producer.flush()
        await producer.flush()
        heard = []
        producer.send_async(content, lambda *told: heard.append(told), properties=properties)
        await producer.flush()
        assert len(heard) == 1

    broker.run(work())


def test_it_raises_what_the_broker_had_refused_before_it(broker: ScriptedBroker, client: Any):
    broker.on_send = lambda peer, sent: refusal_of(sent)

    async def work() -> None:
        producer = await client.create_producer("t")
        producer.send_async(b"x")
        await turns(20)
        with pytest.raises(NotAllowed, match="not here"):
            await producer.flush()
        await producer.flush()

    broker.run(work())
