"""Acknowledgements that are invalid here raise at once, and hold no others back."""

import asyncio
from typing import Any

import pytest
from scripted_broker import ScriptedBroker, acks, turns

from pybroker.client import ConsumerType, InvalidConfiguration, MessageId, NotAllowed
from pybroker.client.blocking.consumer import Consumer
from pybroker.client.blocking.thread_queue import ThreadQueue

OTHER = MessageId(-1, 1, 5, topic="persistent://public/default/other")


def test_an_id_that_names_another_topic_is_refused(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        consumer = await client.subscribe("t", "s")
        for acknowledge in (consumer.acknowledge, consumer.acknowledge_cumulative):
            with pytest.raises(InvalidConfiguration, match="not a topic"):
                await acknowledge(OTHER)
        with pytest.raises(InvalidConfiguration, match="not a topic"):
            await consumer.seek(OTHER)
        await consumer.acknowledge(MessageId(-1, 1, 6))
        await turns()

    broker.run(work())
    assert acks(broker) == [[(6, [])]]


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_shared_subscriptions_have_no_cumulative_acknowledgement(
    broker: ScriptedBroker, client: Any, kind: ConsumerType
):
    async def work() -> None:
        client.keep_messages_in(ThreadQueue)
        consumer = await client.subscribe("t", "s", kind)
        thread: Any = Posting()
        blocking = Consumer(thread, consumer)
        with pytest.raises(NotAllowed, match="acknowledge each message"):
            await consumer.acknowledge_cumulative(MessageId(-1, 1, 5))
        with pytest.raises(NotAllowed, match="acknowledge each message"):
            blocking.acknowledge_cumulative(MessageId(-1, 1, 5))
        await turns()

    broker.run(work())
    assert acks(broker) == []


class Posting:
    """Stands in for the loop's thread: the test runs on that thread."""

    is_current = True

    def ends(self, _: Any) -> None: ...
    def post(self, function: Any, *arguments: Any) -> None:
        asyncio.get_running_loop().call_soon(function, *arguments)


def test_a_message_of_another_consumer_is_refused_where_it_is_acknowledged(
    broker: ScriptedBroker, client: Any
):
    async def work() -> None:
        client.keep_messages_in(ThreadQueue)
        thread: Any = Posting()
        ours = Consumer(thread, await client.subscribe("t", "s"))
        others = Consumer(thread, await client.subscribe("other", "s"))
        for consumer_id, entry_id in ((1, 0), (1, 1), (2, 7)):
            broker.peer.deliver(consumer_id, entry_id, b"x")
        await turns()
        messages = [ours.receive(), ours.receive()]
        ours.acknowledge(messages[0])
        with pytest.raises(InvalidConfiguration, match="not a topic"):
            ours.acknowledge(foreign := others.receive())
        for refuses in (ours.acknowledge_cumulative, ours.negative_acknowledge):
            with pytest.raises(InvalidConfiguration, match="not a topic"):
                refuses(foreign)
        ours.acknowledge(messages[1])
        await asyncio.sleep(1)

    broker.run(work())
    assert acks(broker) == [[(0, []), (1, [])]]
