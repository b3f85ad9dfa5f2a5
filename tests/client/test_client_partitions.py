"""Partitions added later; and a cancelled opening leaves nothing."""

import asyncio
from typing import Any

import pytest
from scripted_broker import Peer, ScriptedBroker, turns

from pybroker.base.errors import ConsumerBusy
from pybroker.client import MessageId
from pybroker.wire import pulsar_api_pb2 as pb


class Growing:
    """A topic whose number of partitions grows."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.count = 2
        broker.answers["PartitionedTopicMetadata"] = lambda *_: (
            pb.CommandPartitionedTopicMetadataResponse(request_id=0, partitions=self.count)
        )


@pytest.fixture
def topic(broker: ScriptedBroker) -> Growing:
    # An unanswered PING would end the connection meanwhile.
    broker.answers["Ping"] = lambda *_: pb.CommandPong()
    return Growing(broker)


def subscribed(broker: ScriptedBroker) -> dict[str, pb.CommandSubscribe]:
    return {each.topic.rpartition("/")[2]: each for each in broker.asked_for(pb.CommandSubscribe)}


def test_added_partitions_are_consumed_from_their_beginning(
    broker: ScriptedBroker, client: Any, topic: Growing
):
    async def work() -> bytes:
        consumer = await client.subscribe("g", "s")
        topic.count = 3
        await asyncio.sleep(61)
        added = subscribed(broker)["g-partition-2"]
        assert added.initialPosition == pb.CommandSubscribe.Earliest
        broker.peer.deliver(added.consumer_id, 0, b"x")
        message = await consumer.receive(1000)
        await consumer.acknowledge(message)
        await turns()
        assert broker.asked_for(pb.CommandAck)[0].consumer_id == added.consumer_id
        return bytes(message.data())

    assert broker.run(work()) == b"x"
    assert subscribed(broker)["g-partition-0"].initialPosition == pb.CommandSubscribe.Latest


def test_a_reader_reads_added_partitions(broker: ScriptedBroker, client: Any, topic: Growing):
    async def work() -> None:
        await client.create_reader("g", MessageId.latest)
        topic.count = 3
        await asyncio.sleep(61)

    broker.run(work())
    added = subscribed(broker)["g-partition-2"]
    assert added.start_message_id.entryId == 2**64 - 1
    assert not added.durable


def test_added_partitions_are_produced_to(broker: ScriptedBroker, client: Any, topic: Growing):
    async def work() -> set[int]:
        producer = await client.create_producer("g")
        topic.count = 4
        await asyncio.sleep(61)
        return {(await producer.send(b"x")).partition() for _ in range(4)}

    assert broker.run(work()) == {0, 1, 2, 3}


def test_a_partition_that_cannot_be_opened_yet_is_tried_again(
    broker: ScriptedBroker, client: Any, topic: Growing
):
    success = broker.answers["Subscribe"]
    refused = pb.CommandError(request_id=0, error=pb.TopicNotFound, message="not yet")

    async def work() -> None:
        await client.subscribe("g", "s")
        topic.count = 3
        broker.answers["Subscribe"] = lambda *_: refused
        await asyncio.sleep(61)
        broker.answers["Subscribe"] = success
        await asyncio.sleep(60)

    broker.run(work())
    asked = [each.topic for each in broker.asked_for(pb.CommandSubscribe)]
    assert asked.count("persistent://public/default/g-partition-2") == 2


def test_keys_move_once_to_all_added_partitions_together(
    broker: ScriptedBroker, client: Any, topic: Growing
):
    success = broker.answers["Producer"]

    def without_the_last(peer: Peer, body: Any) -> Any:
        if body.topic.endswith("-3"):
            return pb.CommandError(request_id=0, error=pb.TopicNotFound, message="not yet")
        return success(peer, body)

    async def work() -> list[set[int]]:
        producer = await client.create_producer("g")
        topic.count = 4
        broker.answers["Producer"] = without_the_last
        used = []
        for _ in range(2):
            await asyncio.sleep(61)
            sent = [await producer.send(b"x", partition_key=str(key)) for key in range(20)]
            used.append({message_id.partition() for message_id in sent})
            broker.answers["Producer"] = success
        return used

    assert broker.run(work()) == [{0, 1}, {0, 1, 2, 3}]
    asked = [each.topic for each in broker.asked_for(pb.CommandProducer)]
    assert asked.count("persistent://public/default/g-partition-2") == 2
    assert len(broker.asked_for(pb.CommandCloseProducer)) == 1


def test_a_topic_whose_partitions_are_deleted_is_not_made_anew_without(
    broker: ScriptedBroker, client: Any, topic: Growing
):
    async def work() -> None:
        await client.subscribe("g", "s")
        await client.create_producer("g")
        topic.count = 0
        await asyncio.sleep(121)

    broker.run(work())
    *_, last = broker.asked_for(pb.CommandPartitionedTopicMetadata)
    assert not last.metadata_auto_creation_enabled
    assert set(subscribed(broker)) == {"g-partition-0", "g-partition-1"}


def test_it_can_be_switched_off(broker: ScriptedBroker, client: Any, topic: Growing):
    async def work() -> None:
        consumer = await client.subscribe("g", "s", auto_update_partitions=False)
        producer = await client.create_producer("g", auto_update_partitions_interval_s=5)
        topic.count = 3
        await asyncio.sleep(6)
        await producer.close()
        topic.count = 4
        await asyncio.sleep(61)
        assert consumer.is_connected()

    broker.run(work())
    assert len(broker.asked_for(pb.CommandSubscribe)) == 2
    assert len(broker.asked_for(pb.CommandProducer)) == 3


def test_who_could_not_subscribe_does_not_count_as_cancelled(
    broker: ScriptedBroker, client: Any, topic: Growing
):
    """Otherwise the task's next timeout would not work before Python 3.11.3."""
    refused = pb.CommandError(request_id=0, error=pb.ConsumerBusy, message="somebody is there")

    async def work() -> None:
        broker.answers["Subscribe"] = lambda *_: refused
        with pytest.raises(ConsumerBusy):
            await client.subscribe("g", "s")
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    broker.run(work())


@pytest.mark.parametrize("kind", ["Subscribe", "Producer"])
def test_a_cancelled_opening_closes_what_was_open(
    broker: ScriptedBroker, client: Any, topic: Growing, kind: str
):
    answer = broker.answers[kind]

    def only_the_first(peer: Peer, body: Any) -> Any:
        return answer(peer, body) if body.topic.endswith("-0") else None

    broker.answers[kind] = only_the_first

    async def work() -> None:
        opening = client.subscribe("g", "s") if kind == "Subscribe" else client.create_producer("g")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(opening, 1)
        await turns()
        assert not client._cluster.members

    broker.run(work())
    asked = broker.asked_for(pb.CommandSubscribe) + broker.asked_for(pb.CommandProducer)
    closed = broker.asked_for(pb.CommandCloseConsumer) + broker.asked_for(pb.CommandCloseProducer)
    opened = {each.consumer_id if kind == "Subscribe" else each.producer_id for each in asked}
    assert len(opened) == 2
    assert {each.consumer_id if kind == "Subscribe" else each.producer_id for each in closed} == (
        opened
    )
