"""The position of a consumer or a reader: seeking, starting, and which messages are left out."""

import asyncio
from typing import Any

import pytest
from scripted_broker import (
    Peer,
    ScriptedBroker,
    acks,
    closes_whoever_seeks,
    deliver_batch,
    refusal,
    turns,
)

from pybroker.base.errors import MetadataError
from pybroker.client import ConnectError, ConsumerType, InvalidConfiguration, MessageId
from pybroker.wire import pulsar_api_pb2 as pb


class TestSeeking:
    def test_it_drops_what_was_under_way_and_asks_for_what_is_behind_the_message(
        self, broker: ScriptedBroker, client: Any
    ):
        def seek(peer: Peer, body: Any) -> Any:
            peer.deliver(1, 9, b"under way")
            return pb.CommandSuccess(request_id=0)

        broker.answers["Seek"] = seek

        async def work() -> list[bytes]:
            consumer = await client.subscribe("t", "s")
            broker.peer.deliver(1, 8, b"queued")
            await turns()
            await consumer.seek(MessageId(-1, 1, 3))
            for entry_id in (3, 4):
                broker.peer.deliver(1, entry_id, b"%d" % entry_id)
            return [each.data() for each in await consumer.take(10, 1000)]

        assert broker.run(work()) == [b"3", b"4"]
        assert broker.asked_for(pb.CommandSeek)[0].message_id.entryId == 4
        assert acks(broker) == []

    def test_into_a_batch_leaves_its_beginning_out_once_and_acknowledges_nothing(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> list[list[bytes]]:
            consumer = await client.subscribe("t", "s", ConsumerType.Shared)
            await consumer.seek(MessageId(-1, 1, 5, 1, batch_size=3))
            received = []
            for _ in range(2):
                deliver_batch(broker, 5)
                received.append([each.data() for each in await consumer.take(10, 1000)])
            return received

        assert broker.run(work()) == [[b"c"], [b"a", b"b", b"c"]]
        (seek,) = broker.asked_for(pb.CommandSeek)
        assert (seek.message_id.entryId, list(seek.message_id.ack_set)) == (5, [0b100])
        assert acks(broker) == []

    def test_the_rest_of_a_batch_acknowledges_it(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            await consumer.seek(MessageId(-1, 1, 5, 1, batch_size=3))
            deliver_batch(broker, 5)
            await consumer.acknowledge(await consumer.receive(1000))
            await turns()

        broker.run(work())
        assert acks(broker) == [[(5, [])]]

    def test_messages_are_delivered_again_after_another_client_moves_it_back(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> list[bytes]:
            consumer = await client.subscribe("t", "s")
            await consumer.seek(MessageId(-1, 1, 5, 0))
            for entry_id in range(4):
                broker.peer.deliver(1, entry_id, b"%d" % entry_id)
            return [each.data() for each in await consumer.take(10, 1000)]

        assert broker.run(work()) == [b"0", b"1", b"2", b"3"]
        assert acks(broker) == []

    def test_earlier_acknowledgements_leave_before_it(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            broker.peer.deliver(1, 5, b"x")
            await consumer.acknowledge(await consumer.receive(1000))
            await consumer.seek(MessageId.earliest)

        broker.run(work())
        kinds = [type(body) for body in broker.asked]
        assert kinds.index(pb.CommandAck) < kinds.index(pb.CommandSeek)

    def test_one_that_is_refused_changes_nothing(self, broker: ScriptedBroker, client: Any):
        broker.answers["Seek"] = lambda *_: refusal(pb.MetadataError)

        async def work() -> list[bytes]:
            consumer = await client.subscribe("t", "s")
            with pytest.raises(MetadataError):
                await consumer.seek(MessageId(-1, 1, 5, 1))
            deliver_batch(broker, 5)
            return [each.data() for each in await consumer.take(10, 1000)]

        assert broker.run(work()) == [b"a", b"b", b"c"]

    def test_by_time_nothing_is_left_out(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            await consumer.seek(12_345)
            broker.peer.deliver(1, 0, b"x")
            assert (await consumer.receive(1000)).data() == b"x"

        broker.run(work())
        assert broker.asked_for(pb.CommandSeek)[0].message_publish_time == 12_345

    def test_a_broker_that_closes_the_consumer_first_is_followed(
        self, broker: ScriptedBroker, client: Any
    ):
        broker.answers["Seek"] = closes_whoever_seeks

        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            await consumer.seek(MessageId.earliest)
            await asyncio.sleep(1)
            broker.peer.deliver(1, 0, b"x")
            assert (await consumer.receive(1000)).data() == b"x"

        broker.run(work())
        assert len(broker.asked_for(pb.CommandSubscribe)) == 2

    def test_without_connection_it_says_so(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            broker.down = True
            broker.peer.drop()
            await turns()
            with pytest.raises(ConnectError, match="try again"):
                await consumer.seek(MessageId.earliest)

        broker.run(work())


class TestReaders:
    def last_is(self, entry_id: int, mark_delete: int = -1) -> Any:
        return lambda *_: pb.CommandGetLastMessageIdResponse(
            request_id=0,
            last_message_id=MessageId(-1, 1, entry_id).to_wire(),
            consumer_mark_delete_position=MessageId(-1, 1, mark_delete).to_wire(),
        )

    def test_a_reader_leaves_out_where_it_starts(self, broker: ScriptedBroker, client: Any):
        async def work() -> list[bytes]:
            reader = await client.create_reader("t", MessageId(-1, 1, 5, 0, batch_size=3))
            deliver_batch(broker, 5)
            return [each.data() for each in await reader.batch_read(10, 1000)]

        assert broker.run(work()) == [b"b", b"c"]
        (request,) = broker.asked_for(pb.CommandSubscribe)
        assert not request.durable
        assert request.start_message_id.entryId == 5

    def test_an_inclusive_one_does_not(self, broker: ScriptedBroker, client: Any):
        async def work() -> list[bytes]:
            reader = await client.create_reader(
                "t", MessageId(-1, 1, 5, 1, batch_size=3), start_message_id_inclusive=True
            )
            deliver_batch(broker, 5)
            return [each.data() for each in await reader.batch_read(10, 1000)]

        assert broker.run(work()) == [b"b", b"c"]

    def test_a_new_session_goes_on_behind_the_last_message_read(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> bytes:
            reader = await client.create_reader("t", MessageId.earliest)
            for entry_id in range(2):
                broker.peer.deliver(1, entry_id, b"%d" % entry_id)
            await reader.read_next(1000)
            broker.peer.drop()
            await asyncio.sleep(1)
            for entry_id in range(2):
                broker.peer.deliver(1, entry_id, b"%d" % entry_id)
            return (await reader.read_next(1000)).data()

        assert broker.run(work()) == b"1"
        assert broker.asked_for(pb.CommandSubscribe)[1].start_message_id.entryId == 0

    def test_a_new_session_before_the_first_message_seeks_to_the_time_again(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> list[bytes]:
            reader = await client.create_reader("t", MessageId.earliest)
            await reader.seek(12_345)
            broker.peer.drop()
            await asyncio.sleep(1)
            for entry_id in (7, 8):
                broker.peer.deliver(1, entry_id, b"%d" % entry_id)
            return [each.data() for each in await reader.batch_read(10, 1000)]

        assert broker.run(work()) == [b"7", b"8"]
        assert [each.message_publish_time for each in broker.asked_for(pb.CommandSeek)] == [
            12_345,
            12_345,
        ]
        # No message may come from the subscription's beginning: first the time, then permits.
        kinds = [type(body) for body in broker.asked]
        assert kinds.index(pb.CommandSeek) < len(kinds) - 1 - kinds[::-1].index(pb.CommandFlow)
        last = kinds[len(kinds) - kinds[::-1].index(pb.CommandSubscribe) - 1 :]
        assert last[:3] == [pb.CommandSubscribe, pb.CommandSeek, pb.CommandFlow]

    def test_a_new_session_behind_the_first_message_of_a_time_begins_with_it(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            reader = await client.create_reader("t", MessageId.earliest)
            await reader.seek(12_345)
            broker.peer.deliver(1, 7, b"7")
            await turns()
            broker.peer.drop()
            await asyncio.sleep(1)

        broker.run(work())
        assert len(broker.asked_for(pb.CommandSeek)) == 1
        assert broker.asked_for(pb.CommandSubscribe)[1].start_message_id.entryId == 7

    def test_a_broker_that_closes_the_seeking_consumer_is_asked_once(
        self, broker: ScriptedBroker, client: Any
    ):
        """Apache Pulsar closes it. The subscription is then at the requested position."""
        broker.answers["Seek"] = closes_whoever_seeks

        async def work() -> None:
            reader = await client.create_reader("t", MessageId.earliest)
            await reader.seek(12_345)
            await asyncio.sleep(10)
            assert len(broker.asked_for(pb.CommandSeek)) == 1
            broker.peer.drop()
            await asyncio.sleep(10)

        broker.run(work())
        # Again after the lost connection, but not for the close caused by the seek.
        assert len(broker.asked_for(pb.CommandSeek)) == 2
        assert len(broker.asked_for(pb.CommandSubscribe)) == 4

    def test_a_time_that_is_refused_to_a_new_session_is_asked_for_again(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            reader = await client.create_reader("t", MessageId.earliest)
            await reader.seek(12_345)
            refused = iter([refusal(pb.MetadataError), refusal(pb.ServiceNotReady)])
            broker.answers["Seek"] = lambda *_: next(refused, pb.CommandSuccess(request_id=0))
            broker.peer.drop()
            await asyncio.sleep(10)
            broker.peer.deliver(1, 7, b"7")
            assert (await reader.read_next(1000)).data() == b"7"

        broker.run(work())
        assert len(broker.asked_for(pb.CommandSeek)) == 4
        # A consumer that was opened but not moved is closed before the next attempt.
        assert len(broker.asked_for(pb.CommandCloseConsumer)) == 2

    def test_a_reader_knows_when_it_has_read_everything(self, broker: ScriptedBroker, client: Any):
        broker.answers["GetLastMessageId"] = self.last_is(0)

        async def work() -> None:
            reader = await client.create_reader("t", MessageId.earliest)
            assert await reader.has_message_available()
            broker.peer.deliver(1, 0, b"x")
            await reader.read_next(1000)
            assert not await reader.has_message_available()

        broker.run(work())

    def test_one_that_the_broker_has_just_closed_asks_again(
        self, broker: ScriptedBroker, client: Any
    ):
        """The topic is unloaded during the request."""
        answers = [refusal(pb.ConsumerNotFound), self.last_is(0)()]
        broker.answers["GetLastMessageId"] = lambda *_: answers.pop(0)

        async def work() -> None:
            reader = await client.create_reader("t", MessageId.earliest)
            assert await reader.has_message_available()

        broker.run(work())
        assert answers == []

    def test_a_backlog_of_one_that_the_broker_has_just_closed_is_asked_for_again(
        self, broker: ScriptedBroker, client: Any
    ):
        """This answer has its own fields for an error."""
        gone = {"error_code": pb.ConsumerNotFound, "error_message": "Consumer 1 not found"}
        said: list[dict[str, Any]] = [gone, {"msgBacklog": 3}]
        broker.answers["ConsumerStats"] = lambda *_: pb.CommandConsumerStatsResponse(
            request_id=0, **said.pop(0)
        )

        async def work() -> int:
            reader = await client.create_reader("t", MessageId.earliest)
            return int(await reader.get_backlog())

        assert broker.run(work()) == 3

    def test_an_inclusive_one_at_the_end_begins_with_the_last_message(
        self, broker: ScriptedBroker, client: Any
    ):
        broker.answers["GetLastMessageId"] = self.last_is(7)

        async def work() -> bytes:
            reader = await client.create_reader(
                "t", MessageId.latest, start_message_id_inclusive=True
            )
            broker.peer.deliver(1, 7, b"last")
            return (await reader.read_next(1000)).data()

        assert broker.run(work()) == b"last"
        assert broker.asked_for(pb.CommandSeek)[0].message_id.entryId == 7

    def test_an_empty_topic_has_nothing_to_read(self, broker: ScriptedBroker, client: Any):
        broker.answers["GetLastMessageId"] = self.last_is(-1)

        async def work() -> None:
            reader = await client.create_reader("t", MessageId.earliest)
            assert not await reader.has_message_available()

        broker.run(work())

    def test_a_reader_at_the_end_has_nothing_to_read(self, broker: ScriptedBroker, client: Any):
        broker.answers["GetLastMessageId"] = self.last_is(7, mark_delete=7)

        async def work() -> None:
            reader = await client.create_reader("t", MessageId.latest)
            assert not await reader.has_message_available()

        broker.run(work())

    def test_a_message_id_is_no_start_for_several_partitions(
        self, broker: ScriptedBroker, client: Any
    ):
        with pytest.raises(InvalidConfiguration, match="reader for that partition"):
            broker.run(client.create_reader("parts", MessageId(0, 1, 5)))
