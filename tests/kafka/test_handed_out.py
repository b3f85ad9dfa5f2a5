"""How often records were handed out of batches in parts, against a number for each record."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.position import Position
from pybroker.broker.subscriptions.consumer import Consumer, SubscribeRequest, SubscriptionType
from pybroker.kafka.shares.acquired import AcquiredEntry, mask
from pybroker.kafka.shares.handed_out import HandedOut
from pybroker.kafka.shares.share_consumer import ShareConsumer

SIZE = 6
LIMIT = 3
AT = Position(1, 1)


def delivered(unacked: int, number: int, size: int = SIZE, at: Position = AT) -> AcquiredEntry:
    return AcquiredEntry(at, 0, size, unacked, b"", number, 0.0, waiting=unacked)


@given(st.lists(st.tuples(st.integers(1, SIZE), st.integers(0, mask(0, SIZE))), max_size=12))
def test_records_are_counted_as_if_each_were_alone(deliveries: list[tuple[int, int]]) -> None:
    """Each delivery hands out so many records, of which some are accepted, and ends."""
    handed_out, counts, left = HandedOut(), dict.fromkeys(range(SIZE), 0), mask(0, SIZE)
    for number, (records, accepted) in enumerate(deliveries, start=1):
        entry = delivered(left, number)
        too_often = handed_out.too_often(entry, LIMIT)
        assert too_often == sum(1 << each for each in counts if counts[each] >= LIMIT) & left
        left &= ~too_often
        entry = delivered(left, number)
        given_now = entry.acquire(records)
        for count, bits in handed_out.by_count(entry, given_now):
            assert all(counts[each] + 1 == count for each in range(SIZE) if bits >> each & 1)
        for each in range(SIZE):
            counts[each] += given_now >> each & 1
        entry.unacked &= ~(given_now & accepted)
        left = entry.unacked
        if not left:
            break
        handed_out.came_back(entry, LIMIT)


def test_a_batch_that_is_always_handed_out_as_a_whole_needs_no_memory() -> None:
    handed_out = HandedOut()
    entry = delivered(mask(0, SIZE), 1)
    entry.acquire(SIZE)
    handed_out.came_back(entry, LIMIT)
    assert not handed_out


def test_the_oldest_are_forgotten_when_there_are_too_many() -> None:
    handed_out, size = HandedOut(), 1_000_000
    for number in range(20):
        entry = delivered(mask(0, size), 2, size, Position(1, number))
        entry.acquire(size - 1)
        handed_out.came_back(entry, LIMIT)
    first, last = (delivered(1, 9, size, Position(1, number)) for number in (0, 19))
    assert handed_out.too_often(first, LIMIT) == 1, "the number of the dispatcher counts"
    assert handed_out.too_often(last, LIMIT) == 0


def test_members_share_the_counts_though_the_last_one_leaves_while_they_join() -> None:
    async def scenario() -> None:
        partition: Any = SimpleNamespace(kept={})
        subscription: Any = Mock()
        subscription.name, subscription.consumers, gate = "group", [], asyncio.Event()

        async def add_consumer(consumer: Consumer, _: SubscriptionType) -> None:
            await gate.wait()
            subscription.consumers.append(consumer)

        subscription.add_consumer = add_consumer
        subscription.remove_consumer = subscription.consumers.remove

        async def joined(number: int) -> ShareConsumer:
            request = SubscribeRequest(number, f"member-{number}")
            return await ShareConsumer.joined(partition, subscription, request)

        gate.set()
        leaving = await joined(0)
        gate.clear()
        slow = asyncio.ensure_future(joined(1))
        await asyncio.sleep(0)
        leaving.close()
        gate.set()
        members = await joined(2), await slow
        assert {id(each._handed_out) for each in members} == {id(partition.kept["group"])}

    asyncio.run(scenario())
