"""Crossing requests: pipelined on one connection, or cut off in the middle."""

import asyncio
from collections.abc import Callable
from typing import Any

from raw_client import RawClient

from pybroker.base.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
Connect = Callable[..., RawClient]
EARLIEST = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)


def start_close(raw: RawClient, consumer_id: int = 1) -> int:
    body = pb.CommandCloseConsumer(consumer_id=consumer_id)
    return raw.start_request(_T.CLOSE_CONSUMER, "close_consumer", body)


def in_use(broker: Any, topic: str) -> bool:
    async def look(running: Any) -> bool:
        found = await running.topics.get(topic)
        return bool(found.in_use)

    return bool(broker.call(look))


def subscription_names(broker: Any, topic: str) -> list[str]:
    async def look(running: Any) -> list[str]:
        found = await running.topics.get(topic)
        return [*found.subscriptions, *found.ledger.cursors]

    return list(broker.call(look))


def test_a_close_right_behind_a_subscribe_comes_second(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    with raw.in_one_piece():
        subscribing, closing = raw.start_subscribe(topic), start_close(raw)
    assert isinstance(raw.answer_to(subscribing), pb.CommandSuccess)
    assert isinstance(raw.answer_to(closing), pb.CommandSuccess)
    assert not in_use(wire_broker, topic)


def test_subscribe_close_subscribe_leaves_one_consumer(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic)
    with raw.in_one_piece():
        answers = [raw.start_subscribe(topic), start_close(raw), raw.start_subscribe(topic)]
    for request_id in answers:
        assert isinstance(raw.answer_to(request_id), pb.CommandSuccess)
    raw.publish(b"x", 0)
    raw.flow(10)
    assert raw.receive(_T.MESSAGE).message_id.entryId == 0


def test_a_reader_that_comes_again_at_once_finds_its_name_free(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic)
    raw.publish(b"x", 0)
    options = {"durable": False, "start_message_id": EARLIEST}
    raw.subscribe(topic, 1, **options)
    for consumer_id in range(2, 12):
        with raw.in_one_piece():
            closing = start_close(raw, consumer_id - 1)
            subscribing = raw.start_subscribe(topic, consumer_id, **options)
        assert isinstance(raw.answer_to(closing), pb.CommandSuccess)
        assert isinstance(raw.answer_to(subscribing), pb.CommandSuccess)
    raw.flow(1, consumer_id=11)
    assert raw.receive(_T.MESSAGE).consumer_id == 11


def test_a_durable_subscription_may_follow_a_reader_of_its_name(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    raw.subscribe(topic, 1, durable=False, start_message_id=EARLIEST)
    with raw.in_one_piece():
        closing, subscribing = start_close(raw), raw.start_subscribe(topic, 2)
    raw.answer_to(closing)
    assert isinstance(raw.answer_to(subscribing), pb.CommandSuccess)
    wire_broker.call(lambda running: running.topics.unload(TopicName.parse(topic)))
    assert "raw" in subscription_names(wire_broker, topic), "it was a durable one"


def test_a_client_that_leaves_before_the_answer_leaves_nothing_behind(
    connect: Connect, wire_broker: Any, topic: str
) -> None:
    for number in range(5):
        name = f"{topic}-{number}"
        gone = connect()
        body = pb.CommandProducer(topic=name, producer_id=1)
        reader = {"subscription": "r", "durable": False, "start_message_id": EARLIEST}
        with gone.in_one_piece():
            gone.start_request(_T.PRODUCER, "producer", body)
            gone.start_subscribe(name)
            gone.start_subscribe(name, 2, **reader)
        gone.close()
    other = connect()
    for number in range(5):
        name = f"{topic}-{number}"
        other.create_producer(name, number, producer_access_mode=pb.WaitForExclusive)
        other.close_producer(number)
        wire_broker.wait_until(lambda name=name: not in_use(wire_broker, name))
        wire_broker.wait_until(lambda name=name: "r" not in subscription_names(wire_broker, name))


def test_a_topic_unloaded_while_clients_arrive_serves_them_anew(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    raw.create_producer(topic, producer_id=1000)
    raw.publish(b"x", 0, producer_id=1000)
    name = TopicName.parse(topic)

    async def unload_twice(running: Any) -> None:
        await asyncio.gather(running.topics.unload(name), running.topics.unload(name))

    for number in range(10):
        body = pb.CommandProducer(topic=topic, producer_id=number)
        producing = raw.start_request(_T.PRODUCER, "producer", body)
        subscribing = raw.start_subscribe(topic, number, subscription=f"s{number}")
        wire_broker.call(unload_twice)
        answers = [raw.answer_to(producing), raw.answer_to(subscribing)]
        for answer in answers:
            unloading = isinstance(answer, pb.CommandError) and answer.error == pb.ServiceNotReady
            assert unloading or not isinstance(answer, pb.CommandError), answer
    raw.subscribe(topic, 2000)
    raw.flow(1, consumer_id=2000)
    assert raw.receive(_T.MESSAGE).message_id.entryId == 0


def test_a_topic_that_is_deleted_while_it_loads_is_gone(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    raw.create_producer(topic)
    raw.publish(b"x", 0)
    name = TopicName.parse(topic)

    async def race(running: Any) -> bool:
        await running.topics.unload(name)
        loading = asyncio.ensure_future(running.topics.get(name))
        deleting = asyncio.ensure_future(running.topics.delete(name))
        await asyncio.gather(loading, deleting)
        return bool(running.topics.exists(name))

    assert not wire_broker.call(race)


def test_who_left_while_a_topic_was_deleted_makes_no_new_one(
    connect: Connect, raw: RawClient, wire_broker: Any, topic: str
) -> None:
    raw.create_producer(topic)
    name = TopicName.parse(topic)
    before = wire_broker.call(sessions)
    gone = connect()

    async def begin_to_delete(running: Any) -> tuple[Any, ...]:
        storage, may_go_on = running.topics.deletions._topic_storage, asyncio.Event()
        remove = storage.remove_topic

        async def slowly(*what: Any) -> None:
            await may_go_on.wait()
            await remove(*what)

        storage.remove_topic = slowly
        return asyncio.ensure_future(running.topics.delete(name, force=True)), may_go_on, storage

    deleting, may_go_on, storage = wire_broker.call(begin_to_delete)
    (session,) = set(wire_broker.call(sessions)) - set(before)
    gone.start_request(_T.PRODUCER, "producer", pb.CommandProducer(topic=topic, producer_id=1))
    gone.start_subscribe(topic)
    wire_broker.wait_until(lambda: len(session.requests._tasks) == 2)
    gone.close()
    wire_broker.wait_until(lambda: session.closed)

    async def end(running: Any) -> bool:
        del storage.remove_topic
        may_go_on.set()
        await deleting
        await session.requests.ended()
        return bool(running.topics.exists(name))

    assert not wire_broker.call(end)


async def sessions(running: Any) -> list[Any]:
    return list(running.server.sessions)
