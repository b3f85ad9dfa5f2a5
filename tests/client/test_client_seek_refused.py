"""A refused seek changes nothing: messages that come meanwhile are delivered."""

import asyncio
from typing import Any

import pytest
from scripted_broker import ScriptedBroker, deliver_batch, refusal, turns

from pybroker.base.errors import PersistenceError
from pybroker.client import MessageId, Timeout
from pybroker.wire import pulsar_api_pb2 as pb


@pytest.mark.parametrize("kind", ["consumer", "reader"])
@pytest.mark.parametrize("outcome", ["refused", "not answered"])
def test_what_came_while_it_was_asked_for_is_delivered(
    broker: ScriptedBroker, client: Any, kind: str, outcome: str
):
    broker.never_answers("Seek")

    async def work() -> list[int]:
        if kind == "reader":
            reader = await client.create_reader("t", MessageId.earliest)
            consumer = reader.consumer
        else:
            consumer = await client.subscribe("t", "s")
        broker.peer.deliver(1, 0, b"x")
        await turns()
        seeking = asyncio.create_task(consumer.seek(MessageId(-1, 1, 7)))
        await turns()
        broker.peer.deliver(1, 1, b"x")
        deliver_batch(broker, 2)
        await turns()
        if outcome == "refused":
            (asked,) = broker.asked_for(pb.CommandSeek)
            said = refusal(pb.PersistenceError, "the disk")
            said.request_id = asked.request_id
            broker.peer.say(said)
        with pytest.raises((PersistenceError, Timeout)):
            await seeking
        return [(await consumer.receive(1_000)).message_id().entry_id() for _ in range(5)]

    assert broker.run(work()) == [0, 1, 2, 2, 2]


def test_what_came_while_it_was_asked_for_is_let_go_when_it_happens(
    broker: ScriptedBroker, client: Any
):
    broker.never_answers("Seek")

    async def work() -> list[int]:
        consumer = await client.subscribe("t", "s", receiver_queue_size=4)
        seeking = asyncio.create_task(consumer.seek(MessageId(-1, 1, 7)))
        await turns()
        broker.peer.deliver(1, 1, b"x")
        deliver_batch(broker, 2)
        await turns()
        (asked,) = broker.asked_for(pb.CommandSeek)
        broker.peer.say(pb.CommandSuccess(request_id=asked.request_id))
        await seeking
        broker.peer.deliver(1, 8, b"x")
        return [(await consumer.receive(1_000)).message_id().entry_id()]

    assert broker.run(work()) == [8]
    assert sum(flow.messagePermits for flow in broker.asked_for(pb.CommandFlow)) == 4 + 4
