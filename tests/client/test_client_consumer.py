import asyncio
from typing import Any

import pytest
from scripted_broker import Peer, ScriptedBroker, acks, deliver_batch, refusal, turns

from pybroker.client import (
    AlreadyClosed,
    CompressionType,
    ConsumerBatchReceivePolicy,
    ConsumerBusy,
    ConsumerKeySharedPolicy,
    ConsumerType,
    InvalidConfiguration,
    KeySharedMode,
    MessageId,
    Timeout,
    encode_batch,
)
from pybroker.wire import pulsar_api_pb2 as pb


def permits(broker: ScriptedBroker) -> list[int]:
    return [flow.messagePermits for flow in broker.asked_for(pb.CommandFlow)]


class TestReceiving:
    def test_an_exclusive_consumer_may_ask_for_some_of_the_keys(
        self, broker: ScriptedBroker, client: Any
    ):
        policy = ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=((0, 9), (20, 29)))
        broker.run(client.subscribe("t", "s", key_shared_policy=policy))
        (asked,) = broker.asked_for(pb.CommandSubscribe)
        ranges = [(each.start, each.end) for each in asked.keySharedMeta.hashRanges]
        assert ranges == [(0, 9), (20, 29)]

    def test_a_message_says_what_the_producer_said(self, broker: ScriptedBroker, client: Any):
        async def work() -> Any:
            consumer = await client.subscribe("t", "s")
            broker.peer.deliver(
                1,
                5,
                b"x",
                event_time=9,
                partition_key="k",
                properties=[pb.KeyValue(key="a", value="b")],
            )
            return await consumer.receive(1000)

        message = broker.run(work())
        assert message.data() == message.value() == b"x"
        assert message.message_id() == MessageId(-1, 1, 5, -1)
        assert (message.publish_timestamp(), message.event_timestamp()) == (7, 9)
        assert (message.properties(), message.partition_key()) == ({"a": "b"}, "k")
        assert message.topic_name() == "persistent://public/default/t"

    def test_a_batch_arrives_as_its_messages(self, broker: ScriptedBroker, client: Any):
        async def work() -> list[Any]:
            consumer = await client.subscribe("t", "s")
            deliver_batch(broker, 5)
            return [await consumer.receive(1000) for _ in range(3)]

        messages = broker.run(work())
        assert [each.data() for each in messages] == [b"a", b"b", b"c"]
        assert [each.message_id().batch_index() for each in messages] == [0, 1, 2]
        assert messages[0].partition_key() == "key"
        assert messages[0].properties() == {"n": "0"}

    def test_what_of_a_batch_is_acknowledged_does_not_arrive(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            deliver_batch(broker, 5, ack_set=(0b101,))
            assert [each.data() for each in await consumer.take(10, 1000)] == [b"a", b"c"]

        broker.run(work())

    def test_zlib_is_unpacked(self, broker: ScriptedBroker, client: Any):
        packed = encode_batch([b"z" * 100], CompressionType.ZLib)

        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            broker.peer.deliver(
                1,
                5,
                packed.payload,
                num_messages_in_batch=1,
                compression=pb.ZLIB,
                uncompressed_size=packed.uncompressed_size,
            )
            assert (await consumer.receive(1000)).data() == b"z" * 100

        broker.run(work())

    def test_receive_gives_up_after_its_timeout(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            with pytest.raises(Timeout):
                await consumer.receive(1500)
            assert asyncio.get_running_loop().time() == pytest.approx(1.5)

        broker.run(work())

    def test_a_torn_entry_is_dropped_and_the_broker_told(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            broker.peer.deliver(1, 5, b"\x00\x00", num_messages_in_batch=3)
            broker.peer.deliver(1, 6, b"x")
            assert (await consumer.receive(1000)).data() == b"x"

        broker.run(work())
        (ack, *_) = broker.asked_for(pb.CommandAck)
        assert ack.validation_error == pb.CommandAck.BatchDeSerializeError

    def test_half_a_queue_of_permits_is_returned_at_a_time(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s", receiver_queue_size=4)
            for entry_id in range(4):
                broker.peer.deliver(1, entry_id, b"x")
            for _ in range(3):
                await consumer.receive(1000)
            await turns()

        broker.run(work())
        assert permits(broker) == [4, 2]

    def test_batch_receive_takes_what_came_in_time(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            assert await consumer.batch_receive() == []
            deliver_batch(broker, 5)
            assert len(await consumer.batch_receive()) == 3
            assert asyncio.get_running_loop().time() == pytest.approx(0.2)

        broker.run(work())

    def test_a_cancelled_batch_receive_leaves_what_it_had_for_the_next(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> list[bytes]:
            policy = ConsumerBatchReceivePolicy(100, -1, 5000)
            consumer = await client.subscribe("t", "s", batch_receive_policy=policy)
            for entry_id in range(3):
                broker.peer.deliver(1, entry_id, b"%d" % entry_id)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.batch_receive(), 1)
            return [each.data() for each in await consumer.take(10, 1000)]

        assert broker.run(work()) == [b"0", b"1", b"2"]

    def test_batch_receive_asks_for_no_more_than_the_queue_holds(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            policy = ConsumerBatchReceivePolicy(100, -1, -1)
            consumer = await client.subscribe(
                "t", "s", batch_receive_policy=policy, receiver_queue_size=2
            )
            for entry_id in range(2):
                broker.peer.deliver(1, entry_id, b"x")
            assert len(await consumer.batch_receive()) == 2

        broker.run(work())

    def test_batch_receive_does_not_wait_for_partitions_that_have_nothing(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            policy = ConsumerBatchReceivePolicy(100, -1, -1)
            consumer = await client.subscribe(
                "parts", "s", batch_receive_policy=policy, receiver_queue_size=2
            )
            for entry_id in range(2):
                broker.peer.deliver(1, entry_id, b"x")
            async with asyncio.timeout(10):
                assert len(await consumer.batch_receive()) == 2

        broker.run(work())

    def test_closing_ends_a_waiting_receive(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            receiving = asyncio.create_task(consumer.receive())
            await turns()
            await consumer.close()
            with pytest.raises(AlreadyClosed):
                await receiving

        broker.run(work())

    def test_a_queue_without_room_is_refused(self, broker: ScriptedBroker, client: Any):
        with pytest.raises(InvalidConfiguration, match="at least 1"):
            broker.run(client.subscribe("t", "s", receiver_queue_size=0))


class TestAcknowledging:
    def test_acknowledgements_of_one_turn_leave_together(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            for entry_id in range(3):
                broker.peer.deliver(1, entry_id, b"x")
            for _ in range(3):
                await consumer.acknowledge(await consumer.receive(1000))
            await turns()

        broker.run(work())
        assert acks(broker) == [[(0, []), (1, []), (2, [])]]

    def test_a_part_of_a_batch_is_acknowledged_by_index(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            deliver_batch(broker, 5)
            await turns()
            for index in (1, 0, 2):
                await consumer.acknowledge(MessageId(-1, 1, 5, index, batch_size=3))
                await turns()

        broker.run(work())
        assert acks(broker) == [[(5, [0b101])], [(5, [0b100])], [(5, [])]]

    def test_without_batch_indexes_an_entry_waits_for_its_last_message(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s", batch_index_ack_enabled=False)
            deliver_batch(broker, 5)
            for _ in range(3):
                await consumer.acknowledge(await consumer.receive(1000))
                await turns()

        broker.run(work())
        assert acks(broker) == [[(5, [])]]

    def test_a_cumulative_one_ends_inside_a_batch(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            deliver_batch(broker, 5)
            message = await consumer.receive(1000)
            await consumer.acknowledge_cumulative(message)
            await turns()

        broker.run(work())
        assert acks(broker) == [[(5, [0b110])]]
        assert broker.asked_for(pb.CommandAck)[0].ack_type == pb.CommandAck.Cumulative

    def test_without_batch_indexes_a_ledgers_first_batch_waits_for_its_last_message(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s", batch_index_ack_enabled=False)
            deliver_batch(broker, 0)
            for _ in range(3):
                await consumer.acknowledge_cumulative(await consumer.receive(1000))
                await turns()
            await consumer.close()

        broker.run(work())
        assert acks(broker) == [[(0, [])]]

    def test_a_serialized_id_can_be_acknowledged(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("parts", "s")
            saved = MessageId(2, 1, 5, 0, batch_size=2).serialize()
            await consumer.acknowledge(MessageId.deserialize(saved))
            await turns()

        broker.run(work())
        (ack,) = broker.asked_for(pb.CommandAck)
        subscribed = {
            each.consumer_id: each.topic for each in broker.asked_for(pb.CommandSubscribe)
        }
        assert subscribed[ack.consumer_id].endswith("parts-partition-2")
        assert acks(broker) == [[(5, [0b10])]]

    def test_an_id_of_no_known_topic_is_refused(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe(["t", "u"], "s")
            with pytest.raises(InvalidConfiguration, match="pass the Message"):
                await consumer.acknowledge(MessageId(-1, 1, 5))

        broker.run(work())


class TestRedelivery:
    def test_what_a_new_session_brings_again_is_not_asked_for_again(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> list[bytes]:
            consumer = await client.subscribe(
                "t", "s", negative_ack_redelivery_delay_ms=5_000, unacked_messages_timeout_ms=5_000
            )
            broker.peer.deliver(1, 0, b"x")
            broker.peer.deliver(1, 1, b"x")
            consumer.negative_acknowledge(await consumer.receive(1000))
            await consumer.receive(1000)
            broker.peer.drop()
            await asyncio.sleep(2)
            for entry_id in range(3):
                broker.peer.deliver(1, entry_id, b"again")
            await consumer.acknowledge(await consumer.receive(1000))
            await consumer.acknowledge(await consumer.receive(1000))
            await asyncio.sleep(4)
            return [message.data() for message in await consumer.take(5, 100)]

        assert broker.run(work()) == [b"again"]
        assert not broker.asked_for(pb.CommandRedeliverUnacknowledgedMessages)

    def test_what_comes_again_with_everything_is_not_asked_for_once_more(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s", negative_ack_redelivery_delay_ms=5_000)
            for entry_id in range(2):
                broker.peer.deliver(1, entry_id, b"x")
                consumer.negative_acknowledge(await consumer.receive(1000))
                await asyncio.sleep(1)
            await asyncio.sleep(10)

        broker.run(work())
        assert len(broker.asked_for(pb.CommandRedeliverUnacknowledgedMessages)) == 1

    def test_a_negative_acknowledgement_waits_its_delay(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe(
                "t",
                "s",
                consumer_type=ConsumerType.Shared,
                negative_ack_redelivery_delay_ms=2000,
            )
            broker.peer.deliver(1, 5, b"x")
            consumer.negative_acknowledge(await consumer.receive(1000))
            await asyncio.sleep(1.9)
            assert not broker.asked_for(pb.CommandRedeliverUnacknowledgedMessages)
            await asyncio.sleep(0.2)

        broker.run(work())
        (request,) = broker.asked_for(pb.CommandRedeliverUnacknowledgedMessages)
        assert [each.entryId for each in request.message_ids] == [5]

    @pytest.mark.parametrize("kind", ConsumerType)
    def test_nothing_under_way_gets_ahead_of_what_is_delivered_again(
        self, broker: ScriptedBroker, client: Any, kind: ConsumerType
    ):
        async def work() -> list[bytes]:
            consumer = await client.subscribe("t", "s", consumer_type=kind)
            for entry_id in range(3):
                broker.peer.deliver(1, entry_id, b"old")
            await consumer.receive(1000)
            consumer.redeliver_unacknowledged_messages()
            # What was in flight is of the old epoch; what the broker sends afterwards is of the
            # new.
            broker.peer.deliver(1, 3, b"old", consumer_epoch=0)
            broker.peer.deliver(1, 0, b"new", consumer_epoch=1)
            return [each.data() for each in await consumer.take(10, 1000)]

        assert broker.run(work()) == [b"new"]
        (request,) = broker.asked_for(pb.CommandRedeliverUnacknowledgedMessages)
        assert request.consumer_epoch == 1
        assert not request.message_ids

    def test_what_is_not_acknowledged_in_time_comes_again(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            consumer = await client.subscribe(
                "t", "s", consumer_type=ConsumerType.Shared, unacked_messages_timeout_ms=10_000
            )
            broker.peer.deliver(1, 5, b"x")
            broker.peer.deliver(1, 6, b"y")
            await consumer.receive(1000)
            await consumer.acknowledge(await consumer.receive(1000))
            await asyncio.sleep(11)

        broker.run(work())
        (request,) = broker.asked_for(pb.CommandRedeliverUnacknowledgedMessages)
        assert [each.entryId for each in request.message_ids] == [5]

    def test_what_a_transaction_acknowledged_with_all_before_it_is_in_time(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s", unacked_messages_timeout_ms=10_000)
            for entry_id in range(3):
                broker.peer.deliver(1, entry_id, b"x")
            messages = await consumer.take(3, 1000)
            txn = await client.new_transaction()
            await consumer.acknowledge_cumulative(messages[-1], txn)
            await asyncio.sleep(11)

        broker.run(work())
        assert not broker.asked_for(pb.CommandRedeliverUnacknowledgedMessages)

    def test_a_new_session_forgets_what_was_queued(self, broker: ScriptedBroker, client: Any):
        async def work() -> list[bytes]:
            consumer = await client.subscribe("t", "s")
            broker.peer.deliver(1, 5, b"old")
            await turns()
            broker.peer.drop()
            await turns()
            with pytest.raises(Timeout):
                await consumer.receive(500)
            broker.peer.deliver(1, 5, b"again")
            return [each.data() for each in await consumer.take(10, 1000)]

        assert broker.run(work()) == [b"again"]
        assert len(broker.asked_for(pb.CommandSubscribe)) == 2
        assert permits(broker) == [1000, 1000]

    def test_acknowledgements_made_without_connection_leave_with_the_next(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            broker.peer.deliver(1, 5, b"x")
            message = await consumer.receive(1000)
            broker.down = True
            broker.peer.drop()
            await turns()
            await consumer.acknowledge(message)
            broker.down = False
            await asyncio.sleep(1)

        broker.run(work())
        assert acks(broker) == [[(5, [])]]

    def test_a_busy_subscription_is_tried_again_only_after_it_worked(
        self, broker: ScriptedBroker, client: Any
    ):
        success = broker.answers["Subscribe"]

        def busy_twice(peer: Peer, body: Any) -> Any:
            busy = len(broker.asked_for(pb.CommandSubscribe)) in (1, 3)
            return refusal(pb.ConsumerBusy) if busy else success(peer, body)

        broker.answers["Subscribe"] = busy_twice

        async def work() -> None:
            with pytest.raises(ConsumerBusy):
                await client.subscribe("t", "s")
            consumer = await client.subscribe("t", "s")
            broker.peer.drop()
            await asyncio.sleep(1)
            assert consumer.is_connected()

        broker.run(work())
