"""A message that cannot be encoded fails alone; others are sent."""

import asyncio
import random
from typing import Any

import pytest
from scripted_broker import ScriptedBroker

from pybroker.client import CompressionType, InvalidConfiguration, MessageTooBig, encode_batch
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import parse_metadata, payload_of

WRONG: Any = [
    {"partition_key": 5},
    {"ordering_key": 5},
    {"properties": {"count": 1}},
    {"event_timestamp": "now"},
    {"sequence_id": -1},
    {"sequence_id": 2**63},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize("batching_enabled", [False, True])
def test_messages_beside_it_are_published(
    broker: ScriptedBroker, client: Any, batching_enabled: bool, wrong: dict[str, Any]
):
    answers: list[Any] = []

    async def work() -> None:
        producer = await client.create_producer("t", batching_enabled=batching_enabled)
        for details in (wrong, {}, wrong, {}):
            producer.send_async(b"x", lambda result, _: answers.append(result), **details)
        async with asyncio.timeout(5):
            await producer.flush()

    broker.run(work())
    assert sum(isinstance(answer, Exception) for answer in answers) == 2
    assert len(answers) == 4
    sizes = [parse_metadata(sent.entry).num_messages_in_batch for sent in broker.sent]
    assert sizes == ([2] if batching_enabled else [1, 1])


def test_it_leaves_its_room_to_the_next(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        producer = await client.create_producer("t", max_pending_messages=1)
        for _ in range(3):
            with pytest.raises(TypeError) as raised:
                await producer.send(b"x", properties={"count": 1})
        assert "was not sent" in raised.value.__notes__[0]
        await producer.send(b"y")

    broker.run(work())
    assert len(broker.sent) == 1


@pytest.mark.parametrize("waits", [False, True])
def test_what_belongs_to_no_partition_leaves_its_room_and_is_answered(
    broker: ScriptedBroker, client: Any, waits: bool
):
    batch = encode_batch([b"a", b"b"])
    answers: list[Any] = []
    freed: list[int] = []

    async def work() -> None:
        producer = await client.create_producer("parts")
        producer.room_freed = freed.append
        if waits:
            with pytest.raises(InvalidConfiguration, match="no partition 3, only 0 to 2"):
                await producer.send_batch(batch, partition=3)
            return
        producer.send_batch_async(batch, lambda result, _: answers.append(result), partition=3)
        assert isinstance(answers[0], InvalidConfiguration)

    broker.run(work())
    assert freed == [2]


def test_a_batch_of_nothing_is_refused(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        producer = await client.create_producer("t")
        with pytest.raises(InvalidConfiguration, match="empty batch"):
            await producer.send_batch(encode_batch([]))
        await producer.send(b"x")

    broker.run(work())
    assert [sent.sequence_id for sent in broker.sent] == [0]


def test_properties_above_what_the_broker_takes_are_refused(broker: ScriptedBroker, client: Any):
    """The broker would close the connection, and receive the same message on the next one."""
    broker.answers["Connect"] = lambda *_: pb.CommandConnected(
        server_version="scripted", max_message_size=1000
    )

    async def work() -> None:
        producer = await client.create_producer("t")
        with pytest.raises(MessageTooBig, match="including key and properties"):
            await producer.send(b"x", {"much": "y" * 12_000})
        await producer.send(b"x", {"less": "y" * 900})

    broker.run(work())
    assert len(broker.sent) == 1


@pytest.mark.parametrize("batched", [True, False])
def test_what_compression_makes_longer_is_sent_as_it_is(
    broker: ScriptedBroker, client: Any, batched: bool
):
    """Then it fits into an entry like without compression."""
    broker.answers["Connect"] = lambda *_: pb.CommandConnected(
        server_version="scripted", max_message_size=1000
    )
    content = random.Random(1).randbytes(990 if batched else 1000)

    async def work() -> None:
        producer = await client.create_producer(
            "t", compression_type=CompressionType.ZLib, batching_enabled=batched
        )
        await producer.send(content)
        await producer.send(bytes(1000))

    broker.run(work())
    plain, packed = [parse_metadata(sent.entry) for sent in broker.sent]
    assert (plain.compression, packed.compression) == (pb.NONE, pb.ZLIB)
    assert payload_of(broker.sent[0].entry).endswith(content)
    assert len(payload_of(broker.sent[1].entry)) < 100
