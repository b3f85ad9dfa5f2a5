import asyncio
from typing import Any

import pytest
from scripted_broker import Peer, ScriptedBroker, Sent, receipt, refusal

from pybroker.client import (
    AlreadyClosed,
    AuthorizationError,
    CompressionType,
    MessageTooBig,
    ProducerAccessMode,
    ProducerFenced,
    ProducerQueueIsFull,
    Result,
    Timeout,
    TopicNotFound,
    encode_batch,
)
from pybroker.client.compression import codec
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import parse_metadata, payload_of
from pybroker.wire.single_messages import split_batch


def contents(sent: Sent) -> list[bytes]:
    metadata = parse_metadata(sent.entry)
    payload = codec(metadata.compression).decompress(
        payload_of(sent.entry), metadata.uncompressed_size
    )
    return [data for _, data in split_batch(payload, metadata.num_messages_in_batch)]


def silent(peer: Peer, sent: Sent) -> None:
    """A broker that neither stores nor answers."""


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_send_returns_where_the_broker_stored_the_message(broker: ScriptedBroker, client: Any):
    async def work() -> Any:
        producer = await client.create_producer("t")
        return await producer.send(b"x", properties={"a": "b"}, partition_key="k")

    message_id = broker.run(work())
    assert (message_id.ledger_id(), message_id.entry_id()) == (1, 0)
    assert message_id.topic_name() == "persistent://public/default/t"
    metadata = parse_metadata(broker.sent[0].entry)
    assert (metadata.producer_name, metadata.publish_time) == ("given-name", 1_000)
    assert [(pair.key, pair.value) for pair in metadata.properties] == [("a", "b")]
    assert metadata.partition_key == "k"


def test_sequence_ids_go_on_behind_what_the_broker_knows(broker: ScriptedBroker, client: Any):
    broker.answers["Producer"] = lambda *_: pb.CommandProducerSuccess(
        request_id=0, producer_name="p", last_sequence_id=41
    )

    async def work() -> Any:
        producer = await client.create_producer("t", producer_name="p")
        await producer.send(b"x")
        await producer.send(b"y", sequence_id=50)
        await producer.send(b"z")
        return producer.last_sequence_id()

    assert broker.run(work()) == 51
    assert [sent.sequence_id for sent in broker.sent] == [42, 50, 51]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_callback_that_raises_affects_nothing_else(
    broker: ScriptedBroker, client: Any, in_transaction: bool
):
    def raises(*_: Any) -> None:
        raise ValueError("the application's own mistake")

    async def work() -> None:
        producer = await client.create_producer("t")
        txn = await client.new_transaction() if in_transaction else None
        for _ in range(3):
            producer.send_async(b"x", raises, txn=txn)
        await producer.send(b"y", txn=txn)
        if txn is not None:
            await txn.commit()

    broker.run(work())
    assert [sent.sequence_id for sent in broker.sent] == [0, 1, 2, 3]


def test_a_receipt_wakes_as_many_waiting_sends_as_it_makes_room_for(
    broker: ScriptedBroker, client: Any
):
    broker.on_send = silent

    async def work() -> None:
        producer = await client.create_producer(
            "t", max_pending_messages=1, block_if_queue_full=True
        )
        sends = [asyncio.create_task(producer.send(b"%d" % number)) for number in range(5)]
        await turns()
        waiters = list(producer._parts[0]._room._waiters)
        assert len(waiters) == 4
        broker.peer.say(receipt(broker.sent[0]))
        await turns()
        assert list(producer._parts[0]._room._waiters) == waiters[1:]
        assert sends[0].done()

    broker.run(work())
    assert len(broker.sent) == 2


def test_room_promised_to_a_cancelled_send_goes_to_the_next(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        producer = await client.create_producer(
            "t", max_pending_messages=1, block_if_queue_full=True
        )
        loop = asyncio.get_running_loop()
        # The room is promised after this callback, in the same turn of the event loop.
        producer.send_async(b"x", lambda *_: loop.call_soon(sends[0].cancel))
        sends = [asyncio.create_task(producer.send(b"%d" % number)) for number in range(2)]
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1].entry_id() == 1

    broker.run(work())


def test_content_that_is_not_bytes_is_refused(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        producer = await client.create_producer("t")
        await producer.send("text")

    with pytest.raises(TypeError, match="encode it"):
        broker.run(work())


def test_a_missing_topic_is_an_answer_and_not_tried_again(broker: ScriptedBroker, client: Any):
    broker.answers["Producer"] = lambda *_: refusal(pb.TopicNotFound, "no such topic")
    with pytest.raises(TopicNotFound, match="no such topic"):
        broker.run(client.create_producer("t"))
    assert len(broker.asked_for(pb.CommandProducer)) == 1


def test_a_broker_that_is_not_ready_is_tried_again(broker: ScriptedBroker, client: Any):
    success = broker.answers["Producer"]

    def third_time_lucky(peer: Peer, body: Any) -> Any:
        tries = len(broker.asked_for(pb.CommandProducer))
        return refusal(pb.ServiceNotReady) if tries < 3 else success(peer, body)

    broker.answers["Producer"] = third_time_lucky
    producer = broker.run(client.create_producer("t"))
    assert producer.is_connected()


def test_messages_without_a_receipt_are_sent_again_in_order(broker: ScriptedBroker, client: Any):
    async def work() -> list[int]:
        producer = await client.create_producer("t")
        broker.on_send = silent
        sends = [asyncio.create_task(producer.send(b"%d" % i)) for i in range(3)]
        await turns()
        broker.on_send = lambda peer, sent: receipt(sent)
        broker.peer.drop()
        return [(await send).entry_id() for send in sends]

    assert broker.run(work()) == [0, 1, 2]
    assert [sent.sequence_id for sent in broker.sent] == [0, 1, 2, 0, 1, 2]
    first, second = broker.asked_for(pb.CommandProducer)
    assert (first.epoch, second.epoch) == (0, 1)
    assert second.producer_name == "given-name"
    assert not second.user_provided_producer_name


def test_messages_sent_while_the_broker_is_away_arrive_later(broker: ScriptedBroker, client: Any):
    async def work() -> Any:
        producer = await client.create_producer("t")
        broker.down = True
        broker.peer.drop()
        await turns()
        send = asyncio.create_task(producer.send(b"x"))
        await asyncio.sleep(12)
        broker.down = False
        return await send

    assert broker.run(work()).entry_id() == 0


def test_a_topic_that_moves_is_followed(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        producer = await client.create_producer("t")
        producer_id = broker.asked_for(pb.CommandProducer)[0].producer_id
        broker.peer.say(pb.CommandCloseProducer(producer_id=producer_id, request_id=0))
        await producer.send(b"x")

    broker.run(work())
    assert len(broker.asked_for(pb.CommandProducer)) == 2


def test_a_message_without_receipt_times_out_with_all_behind_it(
    broker: ScriptedBroker, client: Any
):
    broker.on_send = silent

    async def work() -> list[Any]:
        producer = await client.create_producer("t", send_timeout_millis=5000)
        sends = [asyncio.create_task(producer.send(b"x"))]
        await asyncio.sleep(4)
        sends.append(asyncio.create_task(producer.send(b"y")))
        answers = await asyncio.gather(*sends, return_exceptions=True)
        assert asyncio.get_running_loop().time() == pytest.approx(5, abs=0.1)
        return answers

    assert [type(answer) for answer in broker.run(work())] == [Timeout, Timeout]


def test_a_refused_message_fails_and_the_next_is_sent(broker: ScriptedBroker, client: Any):
    def refuse_first(peer: Peer, sent: Sent) -> Any:
        if sent.sequence_id > 0:
            return receipt(sent)
        return pb.CommandSendError(
            producer_id=sent.producer_id, sequence_id=0, error=pb.ChecksumError, message="bad"
        )

    broker.on_send = refuse_first

    async def work() -> list[Any]:
        producer = await client.create_producer("t")
        return await asyncio.gather(
            producer.send(b"x"), producer.send(b"y"), return_exceptions=True
        )

    refused, stored = broker.run(work())
    assert str(refused) == "bad"
    assert stored.entry_id() == 1


def test_a_message_that_could_not_be_stored_is_sent_again(broker: ScriptedBroker, client: Any):
    def fail_once(peer: Peer, sent: Sent) -> Any:
        if len(broker.sent) > 1:
            return receipt(sent)
        return pb.CommandSendError(
            producer_id=sent.producer_id, sequence_id=0, error=pb.PersistenceError, message="disk"
        )

    broker.on_send = fail_once

    async def work() -> Any:
        producer = await client.create_producer("t")
        return await producer.send(b"x")

    assert broker.run(work()).entry_id() == 0
    assert [sent.sequence_id for sent in broker.sent] == [0, 0]


def test_a_fenced_producer_stays_fenced(broker: ScriptedBroker, client: Any):
    broker.on_send = lambda peer, sent: pb.CommandSendError(
        producer_id=sent.producer_id,
        sequence_id=sent.sequence_id,
        error=pb.ProducerFenced,
        message="another producer took over",
    )

    async def work() -> None:
        producer = await client.create_producer("t")
        for _ in range(2):
            with pytest.raises(ProducerFenced):
                await producer.send(b"x")

    broker.run(work())
    assert len(broker.sent) == 1
    assert len(broker.asked_for(pb.CommandProducer)) == 1


def test_exclusive_access_is_waited_for_however_long_it_takes(broker: ScriptedBroker, client: Any):
    broker.answers["Producer"] = lambda *_: pb.CommandProducerSuccess(
        request_id=0, producer_name="p", producer_ready=False
    )

    async def work() -> None:
        creating = asyncio.create_task(
            client.create_producer("t", access_mode=ProducerAccessMode.WaitForExclusive)
        )
        await asyncio.sleep(3600)
        (waiting,) = broker.asked_for(pb.CommandProducer)
        broker.peer.say(pb.CommandProducerSuccess(request_id=waiting.request_id, producer_name="p"))
        await (await creating).send(b"x")

    broker.answers["Ping"] = lambda *_: pb.CommandPong()
    broker.run(work())


def test_a_full_queue_refuses_or_waits_as_asked(broker: ScriptedBroker, client: Any):
    broker.on_send = silent

    async def work() -> None:
        producer = await client.create_producer("t", max_pending_messages=1)
        first = asyncio.create_task(producer.send(b"x"))
        await turns()
        with pytest.raises(ProducerQueueIsFull):
            await producer.send(b"y")
        waiting = await client.create_producer(
            "t", max_pending_messages=1, block_if_queue_full=True
        )
        sends = [asyncio.create_task(waiting.send(b"z")) for _ in range(2)]
        await turns()
        assert [sent.producer_id for sent in broker.sent] == [1, 2]
        broker.on_send = lambda peer, sent: receipt(sent)
        for sent in list(broker.sent):
            broker.peer.say(receipt(sent))
        await asyncio.gather(first, *sends)

    broker.run(work())


def test_a_message_above_the_brokers_limit_is_refused(broker: ScriptedBroker, client: Any):
    broker.answers["Connect"] = lambda *_: pb.CommandConnected(
        server_version="s", max_message_size=100
    )

    async def work() -> None:
        producer = await client.create_producer("t")
        with pytest.raises(MessageTooBig, match="accepts 100 bytes"):
            await producer.send(b"x" * 101)
        await producer.send(b"x" * 100)

    broker.run(work())


def test_closing_sends_the_open_batch_and_refuses_more(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        producer = await client.create_producer(
            "t", batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        answers: list[Any] = []
        producer.send_async(b"x", lambda result, message_id: answers.append((result, message_id)))
        await producer.close()
        assert answers[0][0] is Result.Ok
        with pytest.raises(AlreadyClosed):
            await producer.send(b"y")

    broker.run(work())
    assert len(broker.asked_for(pb.CommandCloseProducer)) == 1


class TestBatches:
    def test_a_batch_leaves_when_it_has_waited_long_enough(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> list[Any]:
            producer = await client.create_producer("t", batching_enabled=True)
            ids = await asyncio.gather(*(producer.send(b"%d" % i) for i in range(3)))
            assert asyncio.get_running_loop().time() == pytest.approx(0.01, abs=0.001)
            return ids

        ids = broker.run(work())
        (sent,) = broker.sent
        assert contents(sent) == [b"0", b"1", b"2"]
        assert [each.batch_index() for each in ids] == [0, 1, 2]
        assert {each.entry_id() for each in ids} == {0}
        assert parse_metadata(sent.entry).highest_sequence_id == 2

    def test_a_batch_leaves_when_it_is_full(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            producer = await client.create_producer(
                "t", batching_enabled=True, batching_max_messages=2
            )
            await asyncio.gather(*(producer.send(b"%d" % i) for i in range(5)))

        broker.run(work())
        assert [contents(sent) for sent in broker.sent] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
        assert [sent.sequence_id for sent in broker.sent] == [0, 2, 4]

    def test_a_batch_does_not_grow_beyond_its_size(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            producer = await client.create_producer(
                "t", batching_enabled=True, batching_max_allowed_size_in_bytes=10
            )
            await asyncio.gather(*(producer.send(b"x" * size) for size in (6, 4, 1, 30)))

        broker.run(work())
        assert [[len(each) for each in contents(sent)] for sent in broker.sent] == [
            [6, 4],
            [1],
            [30],
        ]

    def test_properties_and_keys_count_for_a_batchs_size(self, broker: ScriptedBroker, client: Any):
        broker.answers["Connect"] = lambda *_: pb.CommandConnected(
            server_version="scripted", max_message_size=1000
        )

        async def work() -> None:
            producer = await client.create_producer(
                "t", batching_enabled=True, batching_max_allowed_size_in_bytes=1000
            )
            await asyncio.gather(
                *(producer.send(b"x", properties={"p": "v" * 300}) for _ in range(5))
            )

        broker.run(work())
        assert [len(contents(sent)) for sent in broker.sent] == [3, 2]

    def test_a_compressed_batch_says_its_size(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            producer = await client.create_producer(
                "t", batching_enabled=True, compression_type=CompressionType.ZLib
            )
            await asyncio.gather(
                *(producer.send(b"x" * 100, properties={"n": str(i)}) for i in range(10))
            )

        broker.run(work())
        metadata = parse_metadata(broker.sent[0].entry)
        assert metadata.compression == pb.ZLIB
        assert len(payload_of(broker.sent[0].entry)) < 300 < metadata.uncompressed_size
        assert contents(broker.sent[0]) == [b"x" * 100] * 10

    def test_a_delayed_message_travels_alone_and_in_order(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            producer = await client.create_producer("t", batching_enabled=True)
            await asyncio.gather(producer.send(b"x"), producer.send(b"y", deliver_at=5_000))

        broker.run(work())
        batch, single = (parse_metadata(sent.entry) for sent in broker.sent)
        assert batch.num_messages_in_batch == 1
        assert single.deliver_at_time == 5_000
        assert not single.HasField("num_messages_in_batch")

    def test_an_encoded_batch_is_published_as_one_entry(self, broker: ScriptedBroker, client: Any):
        async def work() -> Any:
            producer = await client.create_producer("t")
            await producer.send_batch(encode_batch([b"a", b"b"], CompressionType.ZLib))
            return await producer.send(b"c")

        broker.run(work())
        assert contents(broker.sent[0]) == [b"a", b"b"]
        assert [sent.sequence_id for sent in broker.sent] == [0, 2]


class TestPartitions:
    def test_messages_without_a_key_take_turns(self, broker: ScriptedBroker, client: Any):
        async def work() -> list[int]:
            producer = await client.create_producer("parts")
            return [(await producer.send(b"x")).partition() for _ in range(6)]

        partitions = broker.run(work())
        assert sorted(partitions) == [0, 0, 1, 1, 2, 2]
        assert partitions[:3] == partitions[3:]

    def test_a_key_always_goes_to_the_same_partition(self, broker: ScriptedBroker, client: Any):
        async def work() -> set[int]:
            producer = await client.create_producer("parts")
            ids = [await producer.send(b"x", partition_key="hello") for _ in range(3)]
            return {each.partition() for each in ids}

        assert broker.run(work()) == {99162322 % 3}

    def test_a_batch_keeps_its_partitions_turn(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            producer = await client.create_producer(
                "parts", batching_enabled=True, batching_max_messages=4
            )
            await asyncio.gather(*(producer.send(b"x") for _ in range(8)))

        broker.run(work())
        assert [len(contents(sent)) for sent in broker.sent] == [4, 4]
        assert len({sent.producer_id for sent in broker.sent}) == 2

    def test_no_partition_stays_open_when_one_is_refused(self, broker: ScriptedBroker, client: Any):
        success = broker.answers["Producer"]
        broker.answers["Producer"] = lambda peer, body: (
            refusal(pb.AuthorizationError) if body.topic.endswith("-2") else success(peer, body)
        )

        async def work() -> None:
            with pytest.raises(AuthorizationError):
                await client.create_producer("parts")

        broker.run(work())
        assert len(broker.asked_for(pb.CommandCloseProducer)) == 2
