"""What is remembered of partly acknowledged batches, and how much goes into one command."""

import asyncio
from typing import Any

import pytest
from scripted_broker import ScriptedBroker, acks, deliver_batch, turns

from pybroker.client import ConsumerType, InvalidConfiguration, MessageId
from pybroker.client.consuming.acks import MAX_LARGE, AckGroup, from_words, to_words
from pybroker.server.consuming.on_acknowledge import MAX_IDS_IN_TRANSACTION
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import MAX_COMMAND_BYTES

# Their varints are long: 70,000 ids are more than a broker takes in one command.
IDS = [MessageId(-1, 2**61, entry_id) for entry_id in range(70_000)]


def acknowledged(broker: ScriptedBroker) -> list[int]:
    commands = broker.asked_for(pb.CommandAck)
    assert len(commands) > 1
    assert all(command.ByteSize() < MAX_COMMAND_BYTES for command in commands)
    return [each.entryId for command in commands for each in command.message_id]


@pytest.mark.slow
@pytest.mark.parametrize("in_transaction", [False, True])
def test_very_many_are_acknowledged_by_several_commands(
    broker: ScriptedBroker, client: Any, in_transaction: bool
):
    async def work() -> None:
        consumer = await client.subscribe("t", "s")
        txn = await client.new_transaction() if in_transaction else None
        await consumer.acknowledge(IDS, txn)
        await turns()
        if txn is not None:
            assert all(ack.HasField("request_id") for ack in broker.asked_for(pb.CommandAck))
            await txn.commit()

    broker.run(work())
    assert acknowledged(broker) == list(range(70_000))


def test_in_a_transaction_a_command_names_no_more_than_a_broker_takes(
    broker: ScriptedBroker, client: Any
):
    """Their ids are short: by bytes alone, many more would fit."""

    async def work() -> None:
        consumer = await client.subscribe("t", "s")
        txn = await client.new_transaction()
        await consumer.acknowledge([MessageId(-1, 1, entry_id) for entry_id in range(25_000)], txn)

    broker.run(work())
    commands = broker.asked_for(pb.CommandAck)
    assert sum(len(command.message_id) for command in commands) == 25_000
    assert all(len(command.message_id) <= MAX_IDS_IN_TRANSACTION for command in commands)


def test_very_many_are_asked_for_again_by_several_commands(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        consumer = await client.subscribe(
            "t", "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=1000
        )
        for message_id in IDS:
            consumer.negative_acknowledge(message_id)
        await asyncio.sleep(2)

    broker.run(work())
    requests = broker.asked_for(pb.CommandRedeliverUnacknowledgedMessages)
    assert all(request.ByteSize() < MAX_COMMAND_BYTES for request in requests)
    assert sum(len(request.message_ids) for request in requests) == 70_000


def test_of_what_is_given_back_no_part_is_remembered(broker: ScriptedBroker, client: Any):
    """Another consumer may get it, and this one is not told of that."""

    async def work() -> None:
        consumer = await client.subscribe(
            "t", "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=1000
        )
        deliver_batch(broker, 5)
        first, second, _ = await consumer.take(3, 500)
        await consumer.acknowledge(first)
        consumer.negative_acknowledge(second)
        await asyncio.sleep(2)
        await consumer.acknowledge(second)
        await turns()

    broker.run(work())
    assert acks(broker) == [[(5, [0b110])], [(5, [0b101])]]


@pytest.mark.parametrize("by_batch_index", [True, False])
def test_a_new_session_forgets_the_parts_that_the_broker_knows(by_batch_index: bool):
    group = AckGroup(by_batch_index)
    group.add([(1, 0, 0, 3)])
    group.take()
    group.all_given_back()
    group.add([(1, 0, 1, 3), (1, 0, 2, 3)])
    individual, _ = group.take()
    left = (0b001, 3) if by_batch_index else (0, 0)
    assert individual == [((1, 0), left)]


@pytest.mark.parametrize(
    "what",
    [
        MessageId.earliest,
        MessageId(-1, 1, -1),
        MessageId(-1, 1, 1, 0, batch_size=2**31 - 1),
        MessageId(-1, 1, 1, 7, batch_size=7),
    ],
    ids=["earliest", "before the first", "too large", "behind the last"],
)
def test_what_names_no_message_is_refused_and_the_others_are_acknowledged(
    broker: ScriptedBroker, client: Any, what: MessageId
):
    async def work() -> None:
        consumer = await client.subscribe("t", "s")
        await consumer.acknowledge(MessageId(-1, 1, 5))
        for txn in (None, await client.new_transaction()):
            with pytest.raises(InvalidConfiguration, match="not the id of a message"):
                await consumer.acknowledge([MessageId(-1, 1, 6), what], txn)
        with pytest.raises(InvalidConfiguration, match="not the id of a message"):
            consumer.negative_acknowledge(what)
        await turns()

    broker.run(work())
    assert [each.message_id[0].entryId for each in broker.asked_for(pb.CommandAck)] == [5]


def test_of_large_batches_only_some_are_remembered():
    group, size = AckGroup(by_batch_index=False), 100_000
    for entry_id in range(MAX_LARGE + 1):
        group.add([(1, entry_id, 0, size)])
    assert group.unsent((1, 0), size) == 0
    assert group.unsent((1, MAX_LARGE), size) == 1


@pytest.mark.parametrize("bits", [0, 1, 2**63, 2**64 - 1, 2**64, 2**200 - 2**70])
def test_bits_are_words_with_a_sign(bits: int):
    words = to_words(bits)
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert (from_words(words), len(words)) == (bits, (bits.bit_length() + 63) // 64)
