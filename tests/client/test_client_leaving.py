"""Closing anything, at any moment, leaves nothing at the broker."""

import asyncio
from typing import Any

import pytest
from scripted_broker import ScriptedBroker, turns

from pybroker.client import AlreadyClosed, MessageId
from pybroker.wire import pulsar_api_pb2 as pb


def open_ids(broker: ScriptedBroker) -> set[int]:
    """Ids of consumers and producers of the newest connection that are open for the broker."""
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


def test_a_producer_whose_close_is_cut_short_is_closed(broker: ScriptedBroker, client: Any):
    broker.on_send = lambda *_: None

    async def work() -> None:
        producer = await client.create_producer("t", send_timeout_millis=0)
        sending = asyncio.create_task(producer.send(b"x"))
        await turns()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.close(), 1)
        with pytest.raises(AlreadyClosed):
            await asyncio.wait_for(sending, 1)
        await turns()

    broker.run(work())
    assert open_ids(broker) == set()


def test_a_client_whose_close_is_cut_short_is_closed(broker: ScriptedBroker, client: Any):
    broker.on_send = lambda *_: None

    async def work() -> None:
        producer = await client.create_producer("t", send_timeout_millis=0)
        producer.send_async(b"x")
        await turns()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.close(), 1)
        await turns()
        assert [peer.transport.is_closing() for peer in broker.peers] == [True]
        assert len(asyncio.all_tasks()) == 1

    broker.run(work())


def test_what_waits_for_a_connection_hears_that_the_client_was_closed(
    broker: ScriptedBroker, client: Any
):
    broker.never_answers("Connect")

    async def work() -> None:
        opening = asyncio.create_task(client.create_producer("t"))
        await turns()
        await client.close()
        with pytest.raises(AlreadyClosed):
            await opening

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


def test_closing_does_not_wait_for_ever_for_receipts_that_never_come(
    broker: ScriptedBroker, client: Any
):
    broker.on_send = lambda *_: None
    broker.answers["Ping"] = lambda *_: pb.CommandPong()

    async def work() -> None:
        producer = await client.create_producer("t", send_timeout_millis=0)
        sending = asyncio.create_task(producer.send(b"x"))
        await turns()
        async with asyncio.timeout(31):
            await producer.close()
        with pytest.raises(AlreadyClosed):
            await sending

    broker.run(work())
    assert broker.asked_for(pb.CommandCloseProducer)
