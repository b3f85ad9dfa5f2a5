"""A reader at the latest reads all messages after its creation, despite broken connections."""

import asyncio
from typing import Any

import pytest
from scripted_broker import ScriptedBroker

from pybroker.client import InitialPosition, MessageId, SubscriptionMode
from pybroker.client.aio import Client
from pybroker.wire import pulsar_api_pb2 as pb


def place(ledger_id: int, entry_id: int) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=ledger_id % 2**64, entryId=entry_id % 2**64)


async def opened(client: Any, kind: str) -> Any:
    if kind == "reader":
        return await client.create_reader("t", MessageId.latest)
    return await client.subscribe(
        "t",
        "s",
        initial_position=InitialPosition.Latest,
        subscription_mode=SubscriptionMode.NonDurable,
    )


@pytest.mark.parametrize("kind", ["reader", "consumer"])
@pytest.mark.parametrize("marked", [(3, 7), (3, -1)])
def test_it_comes_again_behind_where_it_began(
    broker: ScriptedBroker, client: Any, kind: str, marked: tuple[int, int]
):
    broker.answers["GetLastMessageId"] = lambda *_: pb.CommandGetLastMessageIdResponse(
        request_id=0, last_message_id=place(9, 9), consumer_mark_delete_position=place(*marked)
    )

    async def work() -> None:
        await opened(client, kind)
        broker.peer.drop()
        await asyncio.sleep(1)

    broker.run(work())
    first, second = broker.asked_for(pb.CommandSubscribe)
    assert first.start_message_id.ledgerId == MessageId.latest.ledger_id()
    again = second.start_message_id
    assert (again.ledgerId, again.entryId) == (marked[0], marked[1] + 1)


def test_where_the_broker_does_not_say_it_comes_again_at_the_latest(
    broker: ScriptedBroker, client: Any
):
    broker.answers["GetLastMessageId"] = lambda *_: pb.CommandError(
        request_id=0, error=pb.NotAllowedError, message="what is that"
    )

    async def work() -> None:
        await opened(client, "reader")
        broker.peer.drop()
        await asyncio.sleep(1)

    broker.run(work())
    first, second = broker.asked_for(pb.CommandSubscribe)
    assert second.start_message_id == first.start_message_id


@pytest.mark.parametrize("earlier", [0, 2])
def test_what_is_published_while_it_is_away_is_read(pulsar_broker: Any, earlier: int):
    async def work() -> list[bytes]:
        async with (
            Client(pulsar_broker.service_url) as client,
            Client(pulsar_broker.service_url) as other,
        ):
            producer = await other.create_producer("t")
            for _ in range(earlier):
                await producer.send(b"before")
            reader = await client.create_reader("t", MessageId.latest)
            (part,) = reader.consumer._parts.values()
            part._attachment.connection.abort("the test's")
            for content in (b"a", b"b"):
                await producer.send(content)
            return [(await reader.read_next(5_000)).data() for _ in range(2)]

    assert asyncio.run(work()) == [b"a", b"b"]
