"""Messages taken and acknowledged by threads, reported to the loop together; by hand, on virtual
time.
"""

import asyncio
import threading
from typing import Any

from scripted_broker import ScriptedBroker, acks, turns

from pybroker.client import ConsumerType, MessageId
from pybroker.client.blocking.handover import Handover
from pybroker.client.blocking.thread_queue import ThreadQueue
from pybroker.wire import pulsar_api_pb2 as pb


async def waiting(broker: ScriptedBroker, client: Any, **options: Any) -> tuple[Any, Handover]:
    """A consumer with three messages in its queue."""
    client.keep_messages_in(ThreadQueue)
    consumer = await client.subscribe("t", "s", ConsumerType.Shared, **options)
    for entry_id in range(3):
        broker.peer.deliver(1, entry_id, b"x")
    await turns()
    return consumer, Handover(consumer)


def test_what_was_acknowledged_is_not_waited_for(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        _, handover = await waiting(broker, client, unacked_messages_timeout_ms=10_000)
        message, forgotten = handover.queue.take(), handover.queue.take()
        assert message is not None and forgotten is not None
        handover.acknowledged.append(message)
        handover.settle()
        await asyncio.sleep(11)

    broker.run(work())
    (request,) = broker.asked_for(pb.CommandRedeliverUnacknowledgedMessages)
    assert [each.entryId for each in request.message_ids] == [1]


def test_the_first_leaves_at_once_and_those_of_the_next_moment_together(
    broker: ScriptedBroker, client: Any
):
    async def work() -> None:
        _, handover = await waiting(broker, client)
        for count in (1, 2):
            taken = [handover.queue.take() for _ in range(count)]
            handover.acknowledged.extend(each for each in taken if each is not None)
            if count == 1:
                handover.watched = True
                handover.watch()
            await turns()
            assert len(acks(broker)) == 1
        await asyncio.sleep(1)
        assert not handover.watched

    broker.run(work())
    assert acks(broker) == [[(0, [])], [(1, []), (2, [])]]


def test_who_took_half_goes_on_when_that_and_what_was_acknowledged_has_left(
    broker: ScriptedBroker, client: Any
):
    written: list[int] = []

    async def work() -> None:
        _, handover = await waiting(broker, client, receiver_queue_size=4)
        queue = handover.queue
        assert queue.half == 2
        handover.acknowledged.extend(message for _ in "ab" if (message := queue.take()))
        told, before = queue.told, broker.writes

        def watched() -> None:
            written.append(broker.writes - before)
            told()

        queue.told = watched  # type: ignore[method-assign]
        queue.telling = queue.awaited = True
        handover.settle()
        assert not queue.telling, "what is taken from now on is told anew"
        assert queue.awaited
        await turns()
        assert not queue.awaited

    broker.run(work())
    assert written == [1]
    assert broker.asked_for(pb.CommandFlow)[-1].messagePermits == 2
    assert acks(broker) == [[(0, []), (1, [])]]


def test_a_thread_that_took_half_waits_for_the_loop_and_not_for_ever():
    queue = ThreadQueue()
    queue.wait_until_told()  # there is nothing to wait for
    queue.put([object()])  # type: ignore[list-item]
    queue.awaited = True
    queue.wait_until_told()
    thread = threading.Thread(target=lambda: [queue.wait_until_told() for _ in range(100)])
    thread.start()
    queue.told()
    thread.join()
    assert not queue.awaited


def test_closing_settles_first(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        consumer, handover = await waiting(broker, client)
        message = handover.queue.take()
        assert message is not None
        handover.acknowledged.append(message)
        await consumer.close()

    broker.run(work())
    assert acks(broker) == [[(0, [])]]


def test_a_reader_that_reconnects_knows_what_threads_took(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        client.keep_messages_in(ThreadQueue)
        reader = await client.create_reader("t", MessageId.earliest)
        for entry_id in range(3):
            broker.peer.deliver(1, entry_id, b"x")
        await turns()
        reader.consumer.queue.take()
        reader.consumer.queue.take()
        broker.peer.lose()
        await asyncio.sleep(1)

    broker.run(work())
    assert broker.asked_for(pb.CommandSubscribe)[1].start_message_id.entryId == 1
