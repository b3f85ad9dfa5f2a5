"""The load of segments is measured, and topics are split and merged by it, as time passes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from unittest.mock import patch

from topics_world import World, run

from managed_ledger.errors import StorageFull
from pybroker.base.names import any_topic
from pybroker.broker.policies.auto_scale import AUTO_SCALE
from pybroker.broker.scalable.record import of_segment, with_auto_scale

ORDERS = any_topic("topic://public/default/orders")
# One message a second is much.
MUCH: Final = {
    "splitMsgRateInThreshold": 1.0,
    "mergeMsgRateInThreshold": 0.1,
    "mergeWindowSeconds": 120,
    "mergeCooldownSeconds": 100,
}


def scenario(work: Callable[[World], Awaitable[None]], segments: int = 1, **policy: Any) -> None:
    async def go(world: World) -> None:
        await world.topics.scalable.create(ORDERS, segments)
        await set_policy(world, MUCH | policy)
        await work(world)

    run(go)


async def set_policy(world: World, policy: dict[str, Any] | None) -> None:
    await world.topics.scalable.change(ORDERS, lambda now: with_auto_scale(now, policy))


def active(world: World) -> list[int]:
    return [each.id for each in world.topics.scalable.get(ORDERS).active]


async def publish(world: World, a_second: int, seconds: int, at: int = 0) -> None:
    """To the active segment with that place."""
    for _ in range(seconds):
        segment = world.topics.scalable.get(ORDERS).active[at]
        topic = await world.topic(of_segment(ORDERS, segment))
        producer = await world.producer(topic)
        for _ in range(a_second):
            await world.publish(topic, producer)
        await topic.producers.remove(producer)
        await asyncio.sleep(1)


def test_a_busy_segment_is_split_once_its_load_is_known() -> None:
    async def work(world: World) -> None:
        await publish(world, 5, 130)
        assert active(world) == [1, 2]
        assert world.topics.scalable.measures.operations == {("split", "auto", "success"): 1}

    scenario(work)


def test_a_topic_that_is_busy_for_long_is_split_again_up_to_its_limit() -> None:
    async def work(world: World) -> None:
        await publish(world, 5, 600)
        assert len(active(world)) == 3
        blocked = world.topics.scalable.auto_scaler.blocked(ORDERS)
        assert blocked is not None and "maxSegments is 3" in blocked

    scenario(work, maxSegments=3)


def test_an_idle_topic_is_merged_down_to_its_limit() -> None:
    async def work(world: World) -> None:
        for each in world.topics.scalable.get(ORDERS).active:
            await world.topic(of_segment(ORDERS, each))
        await asyncio.sleep(110)
        assert len(active(world)) == 4, "not idle for long enough"
        await asyncio.sleep(900)
        assert len(active(world)) == 2
        assert world.topics.scalable.measures.operations["merge", "auto", "success"] == 2

    scenario(work, segments=4, minSegments=2)


def test_a_segment_that_had_a_busy_moment_is_not_merged_for_a_while() -> None:
    async def work(world: World) -> None:
        for each in world.topics.scalable.get(ORDERS).active:
            await world.topic(of_segment(ORDERS, each))
        for _ in range(5):
            await publish(world, 5, 3)
            await asyncio.sleep(80)
        assert len(active(world)) == 2
        await asyncio.sleep(240)
        assert len(active(world)) == 1

    scenario(work, segments=2)


def test_consumers_without_a_segment_get_one_as_soon_as_they_come() -> None:
    async def work(world: World) -> None:
        await publish(world, 1, 125)
        scaler = world.topics.scalable.auto_scaler
        scaler.consumers = lambda _: 2
        scaler.consumers_changed(ORDERS)
        await asyncio.sleep(2)
        assert active(world) == [1, 2]

    scenario(work, splitMsgRateInThreshold=100.0, splitVsRebucketMinMsgRateInThreshold=0.5)


def test_consumers_without_a_bucket_get_one_as_soon_as_they_come() -> None:
    async def work(world: World) -> None:
        await publish(world, 1, 125)
        scalable = world.topics.scalable
        scalable.auto_scaler.consumers = lambda _: 5
        scalable.auto_scaler.consumers_changed(ORDERS)
        await asyncio.sleep(2)
        (successor,) = scalable.get(ORDERS).active
        assert (successor.id, successor.buckets) == (1, 8)
        assert scalable.last_operations(ORDERS)[-1].name == "rebucket"

    scenario(work)


def test_what_is_disabled_or_contradicts_itself_changes_nothing() -> None:
    async def work(world: World) -> None:
        blocked = world.topics.scalable.auto_scaler.blocked
        await publish(world, 5, 130)
        assert active(world) == [0] and blocked(ORDERS) == "it is disabled"
        await set_policy(world, {"splitMsgRateInThreshold": 1.0})
        await publish(world, 5, 130)
        said = blocked(ORDERS)
        assert active(world) == [0] and said is not None and "the policy is invalid" in said
        await set_policy(world, None)
        await asyncio.sleep(70)
        said = blocked(ORDERS)
        assert said is not None and said.startswith("no segment has too much to do")

    scenario(work, enabled=False)


def test_the_namespace_s_policy_holds_for_what_the_topic_does_not_say() -> None:
    async def work(world: World) -> None:
        await set_policy(world, {"minSegments": 1, "mergeWindowSeconds": 120})
        policies = world.topics.policies
        await policies.set_for_namespace(
            "public/default", AUTO_SCALE, {"minSegments": 4, "mergeCooldownSeconds": 1}
        )
        record = world.topics.scalable.get(ORDERS)
        policy = world.topics.scalable.auto_scaler.policy(ORDERS, record)
        said = [policy[f] for f in ("minSegments", "mergeCooldownSeconds", "maxSegments")]
        assert said == [1, 1, 64]

    scenario(work, segments=4)


def test_a_split_that_fails_is_tried_again() -> None:
    async def work(world: World) -> None:
        scalable = world.topics.scalable
        with patch.object(scalable, "change", side_effect=StorageFull("no space")):
            await publish(world, 5, 130)
        said = scalable.auto_scaler.blocked(ORDERS)
        assert active(world) == [0] and said is not None and said.endswith("but: no space")
        await publish(world, 5, 70)
        assert active(world) == [1, 2]
        last = scalable.last_operations(ORDERS)[-1]
        assert (last.name, last.trigger, last.segments, last.error) == ("split", "auto", (0,), None)

    scenario(work)
