"""Several consumers of one segment: each entry goes whole to the owner of its bucket."""

from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from dispatch_fakes import KEY_SHARED, FakeTopic, RecordingSink, with_topic
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.position import Position
from pybroker.base.errors import ConsumerAssignError
from pybroker.broker.dispatch.entry_buckets import SEVERAL_BUCKETS, UNSTAMPED_BATCH, EntryBuckets
from pybroker.broker.dispatch.hash_ring import slot_of
from pybroker.broker.subscriptions.consumer import (
    Consumer,
    KeySharedMode,
    KeySharedPolicy,
    SubscribeRequest,
)
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

QUARTERS = ((0, 16383), (16384, 32767), (32768, 49151), (49152, 65535))
VIOLATIONS: Counter[str] = Counter()


def by_buckets(*ranges: tuple[int, int]) -> KeySharedPolicy:
    return KeySharedPolicy(KeySharedMode.STICKY, ranges or QUARTERS, violations=VIOLATIONS)


def consumer(name: str, *ranges: tuple[int, int]) -> Consumer:
    request = SubscribeRequest(1, name, key_shared=by_buckets(*ranges))
    return Consumer(request, RecordingSink())


def entry(**fields: Any) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields)
    return build_entry(metadata, b"x")


def stamped(least: int, most: int | None = None) -> bytes:
    return entry(entry_hash_min=least, entry_hash_max=least if most is None else most)


async def publish(topic: FakeTopic, entry: bytes) -> Position:
    position: Position = await topic.ledger.append_one(entry, 1)
    await topic.changed()
    return position


def owned(found: EntryBuckets) -> list[str]:
    owners = (found.owner(start) for start, _ in QUARTERS)
    return [owner.name if owner else "-" for owner in owners]


# -- which consumer has which bucket


def test_buckets_are_divided_by_names_in_runs_however_consumers_came() -> None:
    found = EntryBuckets(VIOLATIONS)
    assert owned(found) == ["-"] * 4
    b, a, c = consumer("b"), consumer("a"), consumer("c")
    found.add(b)
    assert owned(found) == ["b"] * 4
    found.add(a)
    assert owned(found) == ["a", "a", "b", "b"]
    found.add(c)
    assert owned(found) == ["a", "b", "c", "c"]
    assert [(start, end, each.name) for start, end, each in found.ranges()] == [
        (0, 16383, "a"),
        (16384, 32767, "b"),
        (32768, 65535, "c"),
    ]
    found.remove(a)
    assert owned(found) == ["b", "b", "c", "c"]


@given(buckets=st.integers(1, 40), consumers=st.integers(1, 60))
def test_every_bucket_has_one_owner_and_the_ranges_say_so(buckets: int, consumers: int) -> None:
    bounds = [65536 * number // buckets for number in range(buckets + 1)]
    ranges = tuple((start, end - 1) for start, end in pairwise(bounds))
    found = EntryBuckets(VIOLATIONS)
    for number in range(consumers):
        found.add(consumer(f"{number:02}", *ranges))
    said = {slot: owner for start, end, owner in found.ranges() for slot in (start, end)}
    assert all(found.owner(slot) is owner for slot, owner in said.items())
    owners = Counter(found.owner(start) for start, _ in ranges)
    assert sum(owners.values()) == buckets
    assert max(owners.values()) - min(owners.values()) <= 1 or consumers > buckets


@pytest.mark.parametrize(
    "ranges",
    [
        ((0, 16383), (16384, 65535)),
        ((0, 65534),),
        ((1, 65535),),
        ((0, 10), (10, 65535)),
        ((0, 10), (12, 65535)),
        ((0, 65535), (65536, 65535)),
        ((0, 40000), (40001, 30000), (30001, 65535)),
    ],
)
def test_buckets_with_gaps_and_others_than_the_first_consumer_s_are_refused(
    ranges: tuple[tuple[int, int], ...],
) -> None:
    found = EntryBuckets(VIOLATIONS)
    found.add(consumer("a"))
    with pytest.raises(ConsumerAssignError, match="knows an old layout"):
        found.add(consumer("b", *ranges))
    if ranges != ((0, 16383), (16384, 65535)):
        with pytest.raises(ConsumerAssignError, match="without gaps"):
            EntryBuckets(VIOLATIONS).add(consumer("b", *ranges))


# -- the bucket of an entry


def test_the_stamp_says_the_bucket_or_else_the_key() -> None:
    found = EntryBuckets(counted := Counter())
    found.add(consumer("a"))
    assert found.slot_of_entry(stamped(40000, 49151)) == 32768
    key = next(key for key in map(str, range(99)) if slot_of(key.encode()) > 49151)
    assert found.slot_of_entry(entry(partition_key=key)) == 49152
    assert found.slot_of_entry(entry(partition_key="other", ordering_key=key.encode())) == 49152
    assert found.slot_of_entry(entry()) == 0, "no key"
    assert not counted
    assert found.slot_of_entry(stamped(10, 16384)) == 0
    assert found.slot_of_entry(entry(num_messages_in_batch=2)) == 0
    assert found.slot_of_entry(stamped(2**32 - 1, 0)) == 49152
    assert counted == {SEVERAL_BUCKETS: 1, UNSTAMPED_BATCH: 1}


# -- dispatch


def test_an_entry_goes_whole_to_the_owner_of_its_bucket() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        policy = by_buckets()
        _, a = await topic.consumer(subscription, KEY_SHARED, 100, name="a", key_shared=policy)
        _, b = await topic.consumer(subscription, KEY_SHARED, 100, name="b", key_shared=policy)
        for least, most in ((5, 9), (40000, 40001), (16384, 32767), (65535, 65535)):
            metadata = {"entry_hash_min": least, "entry_hash_max": most}
            await publish(topic, entry(num_messages_in_batch=3, **metadata))
        assert (a.entry_ids, b.entry_ids) == ([0, 2], [1, 3])

    with_topic(scenario)


@dataclass(slots=True)
class Moving:
    """Consumer b held the first and the last bucket as consumer a came, which gets the first."""

    topic: FakeTopic
    subscription: Subscription
    b: Consumer
    a_sink: RecordingSink
    b_sink: RecordingSink
    positions: list[Position]


def moving(check: Callable[[Moving], Coroutine[Any, Any, None]]) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, policy = await topic.subscribe(), by_buckets()
        b, b_sink = await topic.consumer(subscription, KEY_SHARED, 100, name="b", key_shared=policy)
        positions = [await publish(topic, stamped(hash_)) for hash_ in (1, 60000)]
        _, a_sink = await topic.consumer(subscription, KEY_SHARED, 100, name="a", key_shared=policy)
        positions += [await publish(topic, stamped(hash_)) for hash_ in (2, 60001)]
        await check(Moving(topic, subscription, b, a_sink, b_sink, positions))

    with_topic(scenario)


def draining(subscription: Subscription) -> int:
    dispatcher = subscription.dispatch.key_shared
    assert dispatcher is not None
    return dispatcher.draining_buckets


def test_a_bucket_that_moves_waits_as_a_whole_until_its_former_owner_is_done() -> None:
    async def check(at: Moving) -> None:
        assert (at.a_sink.entry_ids, at.b_sink.entry_ids) == ([], [0, 1, 3])
        assert draining(at.subscription) == 1, "another key of the same bucket waits, too"
        at.subscription.acknowledge(at.b, at.positions[:1])
        await at.topic.settled()
        assert at.a_sink.entry_ids == [2] and not draining(at.subscription)

    moving(check)


def test_what_a_consumer_that_leaves_held_goes_to_the_new_owner_in_order() -> None:
    async def check(at: Moving) -> None:
        at.subscription.remove_consumer(at.b)
        await at.topic.settled()
        assert at.a_sink.entry_ids == [0, 1, 2, 3]

    moving(check)


def test_consumers_that_share_by_buckets_and_by_ranges_do_not_mix() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, KEY_SHARED, 1, name="a", key_shared=by_buckets())
        plain = KeySharedPolicy(KeySharedMode.STICKY, ((0, 65535),))
        with pytest.raises(ConsumerAssignError, match="STICKY by entry buckets"):
            await topic.consumer(subscription, KEY_SHARED, 1, name="b", key_shared=plain)

    with_topic(scenario)
