"""Groups of stream consumers and watches, while their topic is split, rewound, or created again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

from topics_world import World, run
from virtual_loop import LoopClock

from managed_ledger.errors import StorageFull
from managed_ledger.position import EARLIEST
from pybroker.base.names import any_topic
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable import controllers
from pybroker.broker.scalable.controllers import STREAM, Assignment, Controllers, GroupKey, Member
from pybroker.broker.scalable.layout import Layout
from pybroker.broker.scalable.layouts import Layouts
from pybroker.broker.scalable.record import of_segment

ORDERS = any_topic("topic://public/default/orders")
KEY = GroupKey(ORDERS, "s", STREAM)


class Groups:
    """Watches and groups of a world's topics."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.scalable = world.topics.scalable
        self.layouts = Layouts(world.topics, LoopClock())
        self.controllers = Controllers(self.layouts, world.topics, 60.0)
        self.disconnected: list[str] = []
        self.told: list[list[int]] = []

    async def join(self, name: str = "one") -> list[int]:
        def told(assignment: Assignment) -> None:
            self.told.append(numbers(assignment))

        member = Member(name, told, self.disconnected.append)
        return numbers(await self.controllers.register(KEY, member))

    async def segment(self, number: int) -> Topic:
        record = self.scalable.get(ORDERS)
        return await self.world.topic(of_segment(ORDERS, record.segments[number]))

    async def publish(self, number: int) -> None:
        topic = await self.segment(number)
        await topic.subscription("s", EARLIEST, {}, create=True)
        producer = await self.world.producer(topic)
        await self.world.publish(topic, producer)
        await topic.producers.remove(producer)

    async def close(self) -> None:
        await self.controllers.close()
        await self.layouts.close()


def numbers(assignment: Assignment) -> list[int]:
    return [each.id for each in assignment.segments]


def scenario(work: Callable[[Groups], Awaitable[None]]) -> None:
    async def go(world: World) -> None:
        groups = Groups(world)
        await work(groups)
        await groups.close()

    run(go)


async def until(reached: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not reached():  # noqa: ASYNC110 - virtual time, and several things to wait for
            await asyncio.sleep(0.1)


# -- a topic that is created again


def test_whoever_watches_a_topic_hears_that_it_was_created_again() -> None:
    async def work(groups: Groups) -> None:
        heard: list[Layout] = []
        await groups.scalable.create(ORDERS)
        await groups.layouts.begin(ORDERS, False, heard.append)
        await groups.scalable.delete(ORDERS)
        await asyncio.sleep(5)
        await groups.scalable.create(ORDERS, 3)
        now = await groups.layouts.begin(ORDERS, False, lambda _: None)
        assert len(now.segments) == 3, "not what watches have heard before"
        await until(lambda: heard)
        assert heard[-1].segments == now.segments

    scenario(work)


def test_what_was_drained_of_a_deleted_topic_is_not_of_the_next() -> None:
    async def work(groups: Groups) -> None:
        await groups.scalable.create(ORDERS)
        await groups.publish(0)
        await (await groups.segment(0)).subscriptions["s"].skip_all()
        assert await groups.join() == [0]
        await groups.scalable.split(ORDERS, 0)
        await until(lambda: groups.told[-1:] == [[0, 1, 2]])
        await groups.scalable.delete(ORDERS)
        await groups.scalable.create(ORDERS)
        await groups.publish(0)
        await until(lambda: groups.disconnected)
        assert "created again" in groups.disconnected[0]
        assert await groups.join() == [0]
        await groups.scalable.split(ORDERS, 0)
        await asyncio.sleep(5)
        assert groups.told[-1] == [0, 1, 2] and len(groups.told) == 1, "the children wait"

    scenario(work)


# -- rewinding


def test_children_are_taken_back_when_their_parent_is_rewound_during_a_look() -> None:
    async def work(groups: Groups) -> None:
        await groups.scalable.create(ORDERS, 2)
        for number in (0, 1):
            await groups.publish(number)
        await (await groups.segment(0)).subscriptions["s"].skip_all()
        assert await groups.join() == [0, 1]
        await groups.scalable.split(ORDERS, 1)
        await groups.scalable.split(ORDERS, 0)
        await until(lambda: groups.told[-1:] == [[0, 4, 5, 1]])
        await (await groups.segment(0)).subscriptions["s"].seek_to_time(0)
        await groups.scalable.rewound(ORDERS, "s")
        await until(lambda: groups.told[-1:] == [[0, 1]])

    scenario(work)


def test_a_look_that_a_rewinding_overtakes_is_not_believed() -> None:
    async def work(groups: Groups) -> None:
        await groups.scalable.create(ORDERS)
        await groups.publish(0)
        parent = (await groups.segment(0)).subscriptions["s"]
        assert await groups.join() == [0]
        await groups.scalable.split(ORDERS, 0)
        await parent.skip_all()
        newly_drained = controllers.newly_drained

        async def overtaken(*args: Any) -> set[int]:
            found = await newly_drained(*args)
            if found and not parent.backlog:
                await parent.seek_to_time(0)
                await groups.scalable.rewound(ORDERS, "s")
            return found

        with patch.object(controllers, "newly_drained", overtaken):
            await asyncio.sleep(5)
        assert [0, 1, 2] not in groups.told
        await parent.skip_all()
        await until(lambda: groups.told[-1:] == [[0, 1, 2]])

    scenario(work)


# -- what goes wrong


def test_a_watch_hears_of_a_split_that_a_full_disk_interrupted() -> None:
    async def work(groups: Groups) -> None:
        heard: list[Layout] = []
        await groups.scalable.create(ORDERS)
        await groups.layouts.begin(ORDERS, False, heard.append)
        with patch.object(groups.world.topics, "get", side_effect=StorageFull("no space")):
            await asyncio.gather(groups.scalable.split(ORDERS, 0), return_exceptions=True)
            await asyncio.sleep(5)
        assert not heard
        await until(lambda: heard)
        assert [each.id for each in heard[-1].segments] == [0, 1, 2]

    scenario(work)


def test_a_group_looks_again_after_a_failure() -> None:
    async def work(groups: Groups) -> None:
        await groups.scalable.create(ORDERS)
        await groups.publish(0)
        assert await groups.join() == [0]
        await groups.scalable.split(ORDERS, 0)
        with patch.object(controllers, "newly_drained", side_effect=StorageFull("no space")):
            await asyncio.sleep(5)
        await (await groups.segment(0)).subscriptions["s"].skip_all()
        await until(lambda: groups.told[-1:] == [[0, 1, 2]])

    scenario(work)
