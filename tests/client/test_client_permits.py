"""The broker gets a permit back for each message sent, whatever happens to the message."""

from typing import Any

import pytest
from scripted_broker import ScriptedBroker, deliver_batch, turns

from pybroker.client import ConsumerCryptoFailureAction
from pybroker.wire import pulsar_api_pb2 as pb

KEYS = [pb.EncryptionKeys(key="k", value=b"wrapped")]


def permits(broker: ScriptedBroker) -> list[int]:
    return [flow.messagePermits for flow in broker.asked_for(pb.CommandFlow)]


def test_a_batch_that_is_discarded_gives_all_of_its_permits_back(
    broker: ScriptedBroker, client: Any
):
    async def work() -> None:
        action = ConsumerCryptoFailureAction.DISCARD
        await client.subscribe("t", "s", receiver_queue_size=3, crypto_failure_action=action)
        for entry_id in range(2):
            deliver_batch(broker, entry_id, encryption_keys=KEYS)
        await turns()

    broker.run(work())
    assert permits(broker) == [3, 3, 3]


@pytest.mark.parametrize("ack_set, returned", [((), 3), ((0b110,), 2)])
def test_a_torn_batch_gives_all_of_its_permits_back(
    broker: ScriptedBroker, client: Any, ack_set: tuple[int, ...], returned: int
):
    async def work() -> None:
        await client.subscribe("t", "s", receiver_queue_size=1)
        broker.peer.deliver(1, 0, b"torn", num_messages_in_batch=3, ack_set=ack_set)
        await turns()

    broker.run(work())
    assert permits(broker) == [1, returned]


@pytest.mark.parametrize("size", [-1, 0, 2**31 - 1])
def test_a_batch_of_an_impossible_size_gives_one_back(
    broker: ScriptedBroker, client: Any, size: int
):
    async def work() -> None:
        await client.subscribe("t", "s", receiver_queue_size=1)
        broker.peer.deliver(1, 0, b"torn", num_messages_in_batch=size)
        await turns()

    broker.run(work())
    assert permits(broker) == [1, 1]


def test_what_of_a_batch_was_acknowledged_gives_none_back(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        consumer = await client.subscribe("t", "s", receiver_queue_size=1)
        deliver_batch(broker, 0, ack_set=(0b110,))
        assert [message.data() for message in await consumer.take(10, 100)] == [b"b", b"c"]

    broker.run(work())
    assert sum(permits(broker)) == 1 + 2
