"""An encoded batch that is larger than an entry of this broker may be."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from scripted_broker import Peer, ScriptedBroker, Sent, receipt

from pybroker.client import (
    CompressionType,
    EncodedBatch,
    MessageId,
    MessageTooBig,
    NotAllowed,
    Outgoing,
    encode_batch,
)
from pybroker.client.compression import codec
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import parse_metadata, payload_of
from pybroker.wire.single_messages import split_batch

LIMIT = 1000


@pytest.fixture(autouse=True)
def small_entries(broker: ScriptedBroker) -> None:
    broker.answers["Connect"] = lambda *_: pb.CommandConnected(
        server_version="scripted", max_message_size=LIMIT
    )
    stored = 0

    def store(peer: Peer, sent: Sent) -> Any:
        nonlocal stored
        answer = receipt(sent)
        answer.message_id.entryId = stored
        stored += 1
        return answer

    broker.on_send = store


def refused_where(broker: ScriptedBroker, chosen: Callable[[Sent], bool]) -> None:
    store = broker.on_send

    def answer(peer: Peer, sent: Sent) -> Any:
        if not chosen(sent):
            return store(peer, sent)
        return pb.CommandSendError(
            producer_id=sent.producer_id,
            sequence_id=sent.sequence_id,
            error=pb.NotAllowedError,
            message="no",
        )

    broker.on_send = answer


def batch_of(contents: list[bytes], **details: Any) -> EncodedBatch:
    return encode_batch([Outgoing(each) for each in contents], **details)


def messages(sent: Sent) -> list[bytes]:
    described, payload = parse_metadata(sent.entry), payload_of(sent.entry)
    plain = codec(CompressionType(described.compression)).decompress(
        payload, described.uncompressed_size
    )
    return [content for _, content in split_batch(plain, described.num_messages_in_batch)]


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZLib])
def test_it_goes_in_several_entries_in_order(
    broker: ScriptedBroker, client: Any, compression: CompressionType
):
    # Two hexadecimal digits per random byte: even compressed, all together are too large.
    numbers = random.Random(7)
    contents = [numbers.randbytes(150).hex().encode() for _ in range(21)]

    async def work() -> list[MessageId]:
        producer = await client.create_producer("t")
        batch = batch_of(contents, compression_type=compression)
        return [await producer.send_batch(batch), await producer.send(b"next")]

    first, following = broker.run(work())
    *entries, last = broker.sent
    assert len(entries) > 2
    assert [content for sent in entries for content in messages(sent)] == contents
    assert all(len(payload_of(sent.entry)) <= LIMIT for sent in entries)
    described = [parse_metadata(sent.entry) for sent in entries]
    sequence_ids = [
        number
        for each in described
        for number in range(each.sequence_id, each.highest_sequence_id + 1)
    ]
    assert sequence_ids == list(range(21))
    assert last.sequence_id == 21
    assert first.place[:2] == (1, 0), "that of the first message"
    assert following.place[:2] == (1, len(entries))


def test_its_halves_are_keyed_as_it_was(broker: ScriptedBroker, client: Any):
    encoded = batch_of([bytes(300)] * 6)
    keyed = EncodedBatch(
        encoded.payload,
        6,
        encoded.uncompressed_size,
        partition_key="aw==",
        partition_key_b64_encoded=True,
    )

    async def work() -> None:
        await (await client.create_producer("t")).send_batch(keyed)

    broker.run(work())
    described = [parse_metadata(sent.entry) for sent in broker.sent]
    assert len(described) > 1
    assert {(each.partition_key, each.partition_key_b64_encoded) for each in described} == {
        ("aw==", True)
    }


@pytest.mark.parametrize("refused", range(4))
def test_one_entry_that_is_refused_fails_it(broker: ScriptedBroker, client: Any, refused: int):
    refused_where(broker, lambda sent: sent.sequence_id == 2 * refused)
    freed: list[int] = []

    async def work() -> None:
        producer = await client.create_producer("t", max_pending_messages=8)
        producer.room_freed = freed.append
        with pytest.raises(NotAllowed):
            await producer.send_batch(batch_of([bytes(400)] * 8))
        await producer.send(b"there is room for the next")

    broker.run(work())
    assert len(broker.sent) == 5
    assert sum(freed) == 9


def test_a_transaction_holds_all_of_it(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        producer = await client.create_producer("t")
        txn = await client.new_transaction()
        await producer.send_batch(batch_of([bytes(400)] * 8), txn=txn)
        await txn.commit()

    broker.run(work())
    assert len(broker.sent) == 4
    described = [parse_metadata(sent.entry) for sent in broker.sent]
    assert len({(each.txnid_most_bits, each.txnid_least_bits) for each in described}) == 1
    assert all(each.HasField("txnid_least_bits") for each in described)


def test_a_message_of_it_that_is_too_large_alone_goes_in_chunks_in_its_place(
    broker: ScriptedBroker, client: Any
):
    async def work() -> None:
        producer = await client.create_producer("t", chunking_enabled=True)
        await producer.send_batch(batch_of([b"before", bytes(2500), b"after"]))

    broker.run(work())
    first, *chunks, last = broker.sent
    assert messages(first) == [b"before"]
    assert messages(last) == [b"after"]
    assert b"".join(payload_of(sent.entry) for sent in chunks) == bytes(2500)
    assert {sent.sequence_id for sent in chunks} == {1}


def test_without_chunks_a_message_of_it_that_is_too_large_alone_fails_it_once(
    broker: ScriptedBroker, client: Any
):
    answers: list[Any] = []
    freed: list[int] = []

    async def work() -> None:
        producer = await client.create_producer("t")
        producer.room_freed = freed.append
        batch = batch_of([b"before", bytes(2500), b"after"])
        producer.send_batch_async(batch, lambda result, _: answers.append(result))
        await producer.flush()
        await producer.send(b"next")

    broker.run(work())
    assert [type(each) for each in answers] == [MessageTooBig]
    assert sum(freed) == 4


@pytest.mark.parametrize("chunking_enabled", [False, True])
@pytest.mark.parametrize("size", [*range(LIMIT - 200, LIMIT, 7), LIMIT - 1, LIMIT])
def test_a_message_as_large_as_an_entry_may_be_is_sent(
    broker: ScriptedBroker, client: Any, size: int, chunking_enabled: bool
):
    async def work() -> None:
        producer = await client.create_producer("t", chunking_enabled=chunking_enabled)
        await producer.send_batch(encode_batch([Outgoing(bytes(size), {"n": "v"}, "k")]))
        if not chunking_enabled:
            batching = await client.create_producer("t", batching_enabled=True)
            await batching.send(bytes(size), {"n": "v"}, partition_key="k")

    broker.run(work())
    assert all(len(payload_of(sent.entry)) <= LIMIT for sent in broker.sent)


def test_a_key_that_a_batch_says_twice_does_not_keep_its_message_from_being_sent(
    broker: ScriptedBroker, client: Any
):
    """The key is stored for the entry and for the message: together they exceed a frame."""
    broker.answers["Connect"] = lambda *_: pb.CommandConnected(
        server_version="scripted", max_message_size=40_000
    )
    key = "k" * 12_000
    alone = encode_batch([Outgoing(bytes(27_900), partition_key=key)])
    keyed = EncodedBatch(alone.payload, 1, alone.uncompressed_size, partition_key=key)

    async def work() -> None:
        await (await client.create_producer("t")).send_batch(keyed)

    broker.run(work())
    (sent,) = broker.sent
    assert payload_of(sent.entry) == bytes(27_900)
