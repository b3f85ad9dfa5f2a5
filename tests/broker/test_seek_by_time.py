"""Finding the first message published at or after a time."""

import asyncio
from typing import Any

from dispatch_fakes import EXCLUSIVE, FakeTopic, with_topic

from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.broker.persistent.publish_time import first_published_at
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import MARKER_TXN_COMMIT, build_entry, marker_entry


async def publish_at(topic: FakeTopic, *times_ms: int) -> list[Position]:
    return [
        await topic.ledger.append_one(
            build_entry(
                pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=time_ms), b""
            )
        )
        for time_ms in times_ms
    ]


def test_the_first_message_of_a_time_is_found_across_ledgers() -> None:
    async def scenario(topic: FakeTopic) -> None:
        positions = await publish_at(topic, 10, 20, 20)
        await topic.ledger.roll_over()
        positions += await publish_at(topic, 30, 40)
        for time_ms, index in (0, 0), (10, 0), (11, 1), (20, 1), (21, 3), (35, 4), (40, 4):
            assert await first_published_at(topic.ledger, time_ms) == positions[index]
        assert await first_published_at(topic.ledger, 41) == positions[-1].after

    with_topic(scenario)


def test_the_broker_s_clock_does_not_lead_astray() -> None:
    """It was wrong: markers have times of another year."""

    async def scenario(topic: FakeTopic) -> None:
        positions = []
        for time_ms, marked_ms in (10, 0), (20, 10**6), (30, 0), (40, 0), (50, 10**6):
            positions += await publish_at(topic, time_ms)
            entry = marker_entry(TxnId(0, 1), MARKER_TXN_COMMIT, marked_ms)
            await append(topic, [entry], [0])
        for index, time_ms in enumerate((10, 20, 30, 40, 50)):
            found = await first_published_at(topic.ledger, time_ms)
            assert found in (positions[index], positions[index].before)

    with_topic(scenario)


async def append(topic: FakeTopic, entries: list[bytes], message_counts: list[int]) -> None:
    appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    topic.ledger.append(entries, message_counts, lambda *_: appended.set_result(None))
    await appended


def test_many_markers_in_a_row_do_not_keep_the_loop() -> None:
    async def scenario(topic: FakeTopic) -> None:
        entry = marker_entry(TxnId(0, 1), MARKER_TXN_COMMIT, 0)
        await append(topic, [entry] * 5000, [0] * 5000)
        finding = asyncio.ensure_future(first_published_at(topic.ledger._ledger, 1))
        turns = 0
        while not finding.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 10

    with_topic(scenario)


def test_what_comes_while_a_time_is_looked_for_is_not_passed_over() -> None:
    async def scenario(topic: FakeTopic) -> None:
        await publish_at(topic, 10, 20)
        read, disk_answers = topic.ledger.read, asyncio.Event()

        async def slow_read(*args: Any) -> Any:
            await disk_answers.wait()
            return await read(*args)

        topic.ledger.read = slow_read
        finding = asyncio.ensure_future(first_published_at(topic.ledger, 30))
        await asyncio.sleep(0)
        meanwhile = await publish_at(topic, 30, 40)
        disk_answers.set()
        assert await finding == meanwhile[0]

    with_topic(scenario)


def test_an_empty_topic_is_read_from_its_beginning() -> None:
    async def scenario(topic: FakeTopic) -> None:
        assert await first_published_at(topic.ledger, 5) == topic.ledger.first_position

    with_topic(scenario)


def test_a_seek_to_a_time_includes_that_time() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await publish_at(topic, 10, 20, 30)
        await subscription.seek_to_time(20)
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 10)
        assert sink.entry_ids == [1, 2]

    with_topic(scenario)
