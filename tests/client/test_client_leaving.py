"""Who is closed while it is being registered again leaves nothing behind at the broker."""

import asyncio
from typing import Any

import pytest
from scripted_broker import ScriptedBroker, turns

from pybroker.client import AlreadyClosed, MessageId
from pybroker.wire import pulsar_api_pb2 as pb


def open_ids(broker: ScriptedBroker) -> set[int]:
    """Consumers and producers of the newest connection that the broker takes for open."""
    ids: set[int] = set()
    for body in broker.asked:
        if isinstance(body, pb.CommandConnect):
            ids.clear()
        elif isinstance(body, pb.CommandSubscribe):
            ids.add(body.consumer_id)
        elif isinstance(body, pb.CommandProducer):
            ids.add(body.producer_id)
        elif isinstance(body, pb.CommandCloseConsumer):
            ids.discard(body.consumer_id)
        elif isinstance(body, pb.CommandCloseProducer):
            ids.discard(body.producer_id)
    return ids


@pytest.mark.parametrize("kind", ["Subscribe", "Producer", "EntryReader"])
def test_closed_while_it_is_registered_again(broker: ScriptedBroker, client: Any, kind: str):
    command = "Producer" if kind == "Producer" else "Subscribe"
    answer = broker.answers[command]

    async def work() -> None:
        if kind == "Producer":
            member = await client.create_producer("t")
        elif kind == "Subscribe":
            member = await client.subscribe("t", "s")
        else:
            member = await client.create_entry_reader("t", MessageId.earliest)
        await asyncio.sleep(5)
        broker.never_answers(command)
        broker.peer.drop()
        await turns(60)
        request = broker.asked_for(getattr(pb, f"Command{command}"))[1]
        await member.close()
        said = answer(broker.peer, request)
        said.request_id = request.request_id
        broker.peer.say(said)
        await turns()
        assert open_ids(broker) == set()
        await client.close()

    broker.run(work())


def test_an_entry_reader_is_closed_with_its_client(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        reader = await client.create_entry_reader("t", MessageId.earliest)
        before = asyncio.all_tasks()
        await client.close()
        with pytest.raises(AlreadyClosed):
            await reader.take(1, (9, 9), 1.0)
        await asyncio.sleep(100)
        assert asyncio.all_tasks() == before

    broker.run(work())
    assert len(broker.asked_for(pb.CommandCloseConsumer)) == 1
