"""Messages larger than an entry: assembled, split, acknowledged and discarded as a whole."""

import asyncio
from typing import Any

import pytest
from scripted_broker import (
    Peer,
    ScriptedBroker,
    Sent,
    acks,
    closes_whoever_seeks,
    receipt,
    turns,
)

from pybroker.client import (
    ConsumerType,
    InvalidConfiguration,
    MessageId,
    MessageTooBig,
    NotAllowed,
)
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import parse_metadata, payload_of


def deliver_chunk(
    broker: ScriptedBroker, entry_id: int, uuid: str, number: int, payload: bytes, **details: Any
) -> None:
    described = {"num_chunks_from_msg": 3, "total_chunk_msg_size": 6, **details}
    broker.peer.deliver(1, entry_id, payload, uuid=uuid, chunk_id=number, **described)


async def taken(consumer: Any) -> list[bytes]:
    return [message.data() for message in await consumer.take(100, 500)]


class TestReceiving:
    def test_interleaved_chunks_become_their_messages(self, broker: ScriptedBroker, client: Any):
        async def work() -> list[bytes]:
            consumer = await client.subscribe("t", "s")
            for entry_id, (uuid, number) in enumerate(
                [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
            ):
                deliver_chunk(broker, entry_id, uuid, number, f"{uuid}{number}".encode())
            return await taken(consumer)

        assert broker.run(work()) == [b"b0b1b2", b"a0a1a2"]

    def test_all_its_entries_are_acknowledged_with_it(self, broker: ScriptedBroker, client: Any):
        async def work() -> MessageId:
            consumer = await client.subscribe("t", "s")
            for number in range(3):
                deliver_chunk(broker, 2 * number, "a", number, b"xy")
            message = await consumer.receive(1000)
            assert not broker.asked_for(pb.CommandAck)
            await consumer.acknowledge(message.message_id())
            await turns()
            return message.message_id()

        message_id = broker.run(work())
        assert acks(broker) == [[(0, []), (2, []), (4, [])]]
        assert MessageId.deserialize(message_id.serialize()).first_chunk == (1, 0)

    def test_and_asked_for_again_with_it(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe(
                "t", "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=1000
            )
            for number in range(3):
                deliver_chunk(broker, number, "a", number, b"xy")
            consumer.negative_acknowledge(await consumer.receive(1000))
            await asyncio.sleep(2)

        broker.run(work())
        (request,) = broker.asked_for(pb.CommandRedeliverUnacknowledgedMessages)
        assert [each.entryId for each in request.message_ids] == [0, 1, 2]

    def test_a_cumulative_acknowledgement_spares_the_chunks_of_a_later_message(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            broker.peer.deliver(1, 0, b"first")
            deliver_chunk(broker, 1, "a", 0, b"xy")
            broker.peer.deliver(1, 2, b"between")
            await consumer.receive(1000)
            await consumer.acknowledge_cumulative(await consumer.receive(1000))
            await turns()

        broker.run(work())
        assert acks(broker) == [[(2, [])], [(0, [])]]

    @pytest.mark.parametrize("lost", [True, False])
    def test_also_of_one_that_comes_again(self, broker: ScriptedBroker, client: Any, lost: bool):
        """The application acknowledges an earlier message. Only the client knows where chunks
        begin.
        """

        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            deliver_chunk(broker, 1, "a", 0, b"xy")
            broker.peer.deliver(1, 2, b"between")
            between = await consumer.receive(1000)
            if lost:
                broker.peer.drop()
                await asyncio.sleep(1)
            else:
                consumer.redeliver_unacknowledged_messages()
            await consumer.acknowledge_cumulative(between)
            await turns()
            with pytest.raises(NotAllowed):
                await consumer.acknowledge_cumulative(between, await client.new_transaction())

        broker.run(work())
        assert acks(broker) == [[(2, [])], [(0, [])]]

    def test_but_not_of_one_that_another_broker_has_acquired_meanwhile(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s", ConsumerType.Failover)
            deliver_chunk(broker, 1, "a", 0, b"xy")
            await turns()
            broker.peer.drop()
            await asyncio.sleep(1)
            broker.peer.deliver(1, 2, b"between")
            await consumer.acknowledge_cumulative(await consumer.receive(1000))
            await turns()

        broker.run(work())
        assert acks(broker) == [[(2, [])]]

    @pytest.mark.parametrize("behind", [True, False])
    def test_of_messages_in_chunks_amid_others_all_chunks_are_covered(
        self, broker: ScriptedBroker, client: Any, behind: bool
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            for entry_id, (uuid, number) in enumerate([("a", 0), ("b", 0), ("a", 1)]):
                deliver_chunk(broker, entry_id, uuid, number, b"xy", num_chunks_from_msg=2)
            message = await consumer.receive(1000)
            if behind:
                broker.peer.deliver(1, 3, b"behind")
                message = await consumer.receive(1000)
            await consumer.acknowledge_cumulative(message)
            await turns()

        broker.run(work())
        assert acks(broker) == [[(entry, []) for entry in [0, 2, 3][: 2 + behind]], [(0, [])]]

    def test_every_chunk_gives_its_permit_back(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("t", "s", receiver_queue_size=2)
            for number in range(3):
                deliver_chunk(broker, number, "a", number, b"xy")
            await consumer.receive(1000)
            await turns()

        broker.run(work())
        assert [flow.messagePermits for flow in broker.asked_for(pb.CommandFlow)] == [2, 1, 1, 1]

    def test_what_was_stored_twice_is_used_once(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            for entry_id, number in enumerate((0, 0, 1, 1, 2)):
                deliver_chunk(broker, entry_id, "a", number, b"%d" % number)
            message = await consumer.receive(1000)
            assert message.data() == b"012"
            await consumer.acknowledge(message)
            await turns()

        broker.run(work())
        assert acks(broker) == [[(entry_id, []) for entry_id in range(5)]]

    def test_of_two_messages_of_one_name_no_part_is_put_to_the_other(
        self, broker: ScriptedBroker, client: Any
    ):
        """A producer that dies between two chunks may give its next message the same uuid."""

        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            deliver_chunk(broker, 0, "p-0", 0, b"X")
            for number in range(3):
                deliver_chunk(broker, 1 + number, "p-0", number, b"%d" % number)
            message = await consumer.receive(1000)
            assert message.data() == b"012"
            await consumer.acknowledge(message)
            await turns()

        broker.run(work())
        assert acks(broker) == [[(entry_id, []) for entry_id in range(4)]]

    def test_one_that_cannot_be_unpacked_is_acknowledged_with_all_its_entries(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            await client.subscribe("t", "s")
            for number in range(3):
                deliver_chunk(broker, number, "a", number, b"xy", compression=pb.ZLIB)
            await turns()

        broker.run(work())
        assert acks(broker) == [[(0, []), (1, []), (2, [])]]

    def test_in_a_transaction_none_is_acknowledged_with_a_message_before_its_end(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            deliver_chunk(broker, 0, "a", 0, b"xy")
            broker.peer.deliver(1, 1, b"between")
            between = await consumer.receive(1000)
            txn = await client.new_transaction()
            for message in (between, between.message_id()):
                with pytest.raises(NotAllowed, match="begins at entry 1:0, before this one"):
                    await consumer.acknowledge_cumulative(message, txn)
            assert not broker.asked_for(pb.CommandAck)
            for number in (1, 2):
                deliver_chunk(broker, 1 + number, "a", number, b"xy")
            await consumer.acknowledge_cumulative(await consumer.receive(1000), txn)
            await txn.commit()

        broker.run(work())
        assert acks(broker) == [[(3, [])]]

    def test_a_place_that_no_message_gave_is_acknowledged_with_all_before_it(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            deliver_chunk(broker, 0, "a", 0, b"xy")
            await turns()
            txn = await client.new_transaction()
            await consumer.acknowledge_cumulative(MessageId(-1, 1, 1), txn)

        broker.run(work())
        assert acks(broker) == [[(1, [])]]

    def test_incomplete_ones_are_given_up_unacknowledged(self, broker: ScriptedBroker, client: Any):
        async def work() -> list[bytes]:
            consumer = await client.subscribe(
                "t",
                "s",
                max_pending_chunked_message=1,
                expire_time_of_incomplete_chunked_message_ms=5000,
            )
            deliver_chunk(broker, 0, "old", 0, b"xy")
            deliver_chunk(broker, 1, "new", 0, b"xy")
            deliver_chunk(broker, 2, "old", 1, b"xy")
            await asyncio.sleep(6)
            deliver_chunk(broker, 3, "new", 1, b"xy")
            deliver_chunk(broker, 4, "large", 0, b"more than it says")
            broker.peer.deliver(1, 5, b"whole")
            return await taken(consumer)

        assert broker.run(work()) == [b"whole"]
        assert acks(broker) == []

    def test_a_new_session_begins_with_none(self, broker: ScriptedBroker, client: Any):
        async def work() -> list[bytes]:
            consumer = await client.subscribe("t", "s")
            deliver_chunk(broker, 0, "a", 0, b"xy")
            await turns()
            broker.peer.drop()
            await asyncio.sleep(1)
            for number in range(3):
                deliver_chunk(broker, number, "a", number, b"%d" % number)
            return await taken(consumer)

        assert broker.run(work()) == [b"012"]

    def test_a_reader_that_comes_again_between_chunks_reads_each_message_once(
        self, broker: ScriptedBroker, client: Any
    ):
        chunks = [("x", 0), ("a", 0), ("b", 0), (None, 3), ("x", 1), ("a", 1), ("b", 1)]

        def deliver(entries: range) -> None:
            for entry_id in entries:
                uuid, number = chunks[entry_id]
                if uuid is None:
                    broker.peer.deliver(1, entry_id, b"whole")
                else:
                    payload = f"{uuid}{number}".encode()
                    deliver_chunk(broker, entry_id, uuid, number, payload, num_chunks_from_msg=2)

        async def work() -> list[bytes]:
            reader = await client.create_reader("t", MessageId.earliest)
            deliver(range(6))
            read = [message.data() for message in await reader.batch_read(10, 500)]
            assert await begins_again() == 2
            deliver(range(2, 7))
            broker.peer.deliver(1, 7, b"last")
            read += [message.data() for message in await reader.batch_read(10, 500)]
            assert await begins_again() == 7  # no message counts as incomplete
            return read

        async def begins_again() -> int:
            broker.peer.drop()
            await asyncio.sleep(1)
            start: int = broker.asked_for(pb.CommandSubscribe)[-1].start_message_id.entryId
            return start

        assert broker.run(work()) == [b"whole", b"x0x1", b"a0a1", b"b0b1", b"last"]

    def test_a_reader_that_was_handed_nothing_comes_again_for_the_chunks_before(
        self, broker: ScriptedBroker, client: Any
    ):
        """After a seek by time, the first whole message tells the position."""
        two = {"num_chunks_from_msg": 2}

        async def work() -> list[bytes]:
            reader = await client.create_reader("t", MessageId.earliest)
            await reader.seek(12_345)
            deliver_chunk(broker, 4, "a", 0, b"a0", **two)
            broker.peer.deliver(1, 5, b"whole")
            await turns()
            broker.peer.drop()
            await asyncio.sleep(1)
            start = broker.asked_for(pb.CommandSubscribe)[-1].start_message_id.entryId
            for entry_id in range(start, 6):
                if entry_id == 4:
                    deliver_chunk(broker, 4, "a", 0, b"a0", **two)
                else:
                    broker.peer.deliver(1, entry_id, b"whole")
            deliver_chunk(broker, 6, "a", 1, b"a1", **two)
            return [message.data() for message in await reader.batch_read(10, 500)]

        assert broker.run(work()) == [b"whole", b"a0a1"]

    @pytest.mark.parametrize(
        "chunks", [[("b", 0), ("a", 0), ("a", 1)], [("a", 0), ("b", 0), ("a", 1)]]
    )
    def test_and_for_all_of_the_first_message(
        self, broker: ScriptedBroker, client: Any, chunks: list[tuple[str, int]]
    ):
        async def work() -> None:
            reader = await client.create_reader("t", MessageId.earliest)
            await reader.seek(12_345)
            for entry_id, (uuid, number) in enumerate(chunks):
                deliver_chunk(broker, entry_id, uuid, number, b"x", num_chunks_from_msg=2)
            await turns()
            broker.peer.drop()
            await asyncio.sleep(1)

        broker.run(work())
        assert broker.asked_for(pb.CommandSubscribe)[-1].start_message_id.entryId == 0

    def test_but_not_for_those_before_the_place_that_it_sought(
        self, broker: ScriptedBroker, client: Any
    ):
        broker.answers["Seek"] = closes_whoever_seeks
        two = {"num_chunks_from_msg": 2}

        async def work() -> None:
            reader = await client.create_reader("t", MessageId.earliest)
            deliver_chunk(broker, 0, "a", 0, b"a0", **two)
            broker.peer.deliver(1, 1, b"whole")
            deliver_chunk(broker, 2, "a", 1, b"a1", **two)
            await turns()
            await reader.seek(MessageId(-1, 1, 0))
            await asyncio.sleep(1)
            broker.peer.deliver(1, 1, b"whole")
            deliver_chunk(broker, 2, "a", 1, b"a1", **two)
            assert await taken(reader.consumer) == [b"whole"]
            broker.peer.drop()
            await asyncio.sleep(1)

        broker.run(work())
        assert broker.asked_for(pb.CommandSubscribe)[-1].start_message_id.entryId == 1

    def test_seeking_it_inclusively_begins_with_its_first_chunk(
        self, broker: ScriptedBroker, client: Any
    ):
        sought = MessageId(-1, 1, 7, first_chunk=(1, 3))

        async def work() -> None:
            reader = await client.create_reader("t", sought, start_message_id_inclusive=True)
            await reader.seek(sought)

        broker.run(work())
        assert broker.asked_for(pb.CommandSubscribe)[0].start_message_id.entryId == 3
        assert broker.asked_for(pb.CommandSeek)[0].message_id.entryId == 3


class TestSending:
    @pytest.fixture(autouse=True)
    def small_entries(self, broker: ScriptedBroker) -> None:
        broker.answers["Connect"] = lambda *_: pb.CommandConnected(
            server_version="scripted", max_message_size=1000
        )
        self.stored = 0

        def store(peer: Peer, sent: Sent) -> Any:
            answer = receipt(sent)
            answer.message_id.entryId = self.stored
            self.stored += 1
            return answer

        broker.on_send = store

    def test_what_is_too_large_leaves_in_chunks(self, broker: ScriptedBroker, client: Any):
        content = bytes(range(256)) * 10

        async def work() -> MessageId:
            producer = await client.create_producer("t", chunking_enabled=True)
            await producer.send(b"small")
            message_id: MessageId = await producer.send(content, partition_key="k")
            await producer.send(b"small")
            return message_id

        message_id = broker.run(work())
        described = [parse_metadata(sent.entry) for sent in broker.sent]
        chunks = described[1:-1]
        assert [each.chunk_id for each in chunks] == list(range(len(chunks)))
        assert {each.num_chunks_from_msg for each in chunks} == {len(chunks)}
        assert {(each.uuid, each.partition_key) for each in chunks} == {("given-name-1", "k")}
        assert b"".join(payload_of(sent.entry) for sent in broker.sent[1:-1]) == content
        assert all(len(sent.entry) <= 1010 for sent in broker.sent)
        assert [sent.sequence_id for sent in broker.sent] == [0, *[1] * len(chunks), 2]
        assert message_id.place[:2] == (1, len(chunks))
        assert message_id.first_chunk == (1, 1)

    def test_a_refused_chunk_refuses_the_message(self, broker: ScriptedBroker, client: Any):
        store = broker.on_send

        def refuse_second(peer: Peer, sent: Sent) -> Any:
            if parse_metadata(sent.entry).chunk_id == 1:
                return pb.CommandSendError(
                    producer_id=sent.producer_id,
                    sequence_id=sent.sequence_id,
                    error=pb.NotAllowedError,
                    message="no",
                )
            return store(peer, sent)

        broker.on_send = refuse_second

        async def work() -> None:
            producer = await client.create_producer(
                "t", chunking_enabled=True, max_pending_messages=1
            )
            with pytest.raises(NotAllowed):
                await producer.send(bytes(5000))
            await producer.send(b"there is room for the next")

        broker.run(work())

    def test_a_chunk_refused_before_what_came_first_is_answered_refuses_the_message(
        self, broker: ScriptedBroker, client: Any
    ):
        waiting: list[Sent] = []

        def answers_late(peer: Peer, sent: Sent) -> Any:
            if parse_metadata(sent.entry).chunk_id == 0 and sent.sequence_id == 1:
                return pb.CommandSendError(
                    producer_id=sent.producer_id,
                    sequence_id=sent.sequence_id,
                    error=pb.NotAllowedError,
                    message="no",
                )
            waiting.append(sent)
            return None

        broker.on_send = answers_late

        async def work() -> list[Any]:
            producer = await client.create_producer("t", chunking_enabled=True)
            sending = [asyncio.create_task(producer.send(bytes(size))) for size in (1, 5000)]
            await turns()
            for sent in waiting:
                broker.peer.say(receipt(sent))
            return await asyncio.gather(*sending, return_exceptions=True)

        first, chunked = broker.run(work())
        assert isinstance(first, MessageId)
        assert isinstance(chunked, NotAllowed)

    def test_a_key_and_properties_that_leave_no_room_for_a_chunk_are_refused(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            producer = await client.create_producer("t", chunking_enabled=True)
            with pytest.raises(MessageTooBig, match="The key and properties take"):
                await producer.send(bytes(5000), {"much": "y" * 1000})
            await producer.send(b"small")

        broker.run(work())
        assert len(broker.sent) == 1

    def test_batches_have_none(self, broker: ScriptedBroker, client: Any):
        with pytest.raises(InvalidConfiguration, match="mutually exclusive"):
            broker.run(client.create_producer("t", chunking_enabled=True, batching_enabled=True))
