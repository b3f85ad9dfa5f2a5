"""Exclusive producers that reconnect send the epoch that they had."""

import asyncio
from typing import Any

import pytest
from scripted_broker import Peer, ScriptedBroker, refusal

from pybroker.client import ProducerAccessMode, ProducerFenced
from pybroker.client.aio import Client
from pybroker.wire import pulsar_api_pb2 as pb


def test_who_was_fenced_while_it_was_away_does_not_fence_its_successor(
    broker: ScriptedBroker, client: Any
):
    epochs = iter((7, 9))

    def fences_older_ones(peer: Peer, body: Any) -> Any:
        now = next(epochs)
        if body.HasField("topic_epoch") and body.topic_epoch < now - 1:
            return refusal(pb.ProducerFenced, "another one was there meanwhile")
        return pb.CommandProducerSuccess(request_id=0, producer_name="p", topic_epoch=now)

    broker.answers["Producer"] = fences_older_ones

    async def work() -> None:
        producer = await client.create_producer(
            "t", access_mode=ProducerAccessMode.ExclusiveWithFencing
        )
        broker.peer.drop()
        await asyncio.sleep(1)
        with pytest.raises(ProducerFenced, match="another one"):
            await producer.send(b"x")

    broker.run(work())
    first, second = broker.asked_for(pb.CommandProducer)
    assert not first.HasField("topic_epoch")
    assert second.topic_epoch == 7


def test_who_is_fenced_leaves_the_topic_to_its_successor(pulsar_broker: Any):
    fencing = ProducerAccessMode.ExclusiveWithFencing

    async def work() -> None:
        async with Client(pulsar_broker.service_url) as client:
            first = await client.create_producer("t", access_mode=fencing)
            second = await client.create_producer("t", access_mode=fencing)
            with pytest.raises(ProducerFenced):
                await first.send(b"late")
            await second.send(b"x")

    asyncio.run(work())
