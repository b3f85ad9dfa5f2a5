"""A namespace's limit of topics, also when many are created at once."""

import asyncio

import pytest
from topics_world import World, run

from pybroker.base.errors import TooManyTopics
from pybroker.base.names import SCALABLE, TopicName
from pybroker.broker.namespaces.tenants import Conflict

TOPICS = [TopicName.parse(f"persistent://public/default/t{number}") for number in range(6)]


def test_of_topics_that_are_made_at_once_only_those_come_for_which_there_is_room() -> None:
    async def scenario(world: World) -> None:
        made = await asyncio.gather(
            *(world.topics.get(name, create=True) for name in TOPICS), return_exceptions=True
        )
        assert [type(each) is TooManyTopics for each in made] == [False] * 3 + [True] * 3
        assert len((await world.topics.lists.get("public/default")).names) == 3

    run(scenario, max_topics_per_namespace=3)


def test_who_asks_for_one_topic_twice_at_once_takes_one_place() -> None:
    async def scenario(world: World) -> None:
        first, second = await asyncio.gather(
            *(world.topics.get(TOPICS[0], create=True) for _ in range(2))
        )
        assert first is second

    run(scenario, max_topics_per_namespace=1)


def test_partitions_that_are_made_at_once_take_places_too() -> None:
    async def scenario(world: World) -> None:
        made = await asyncio.gather(
            *(world.topics.create_partitioned(name, 2) for name in TOPICS[:3]),
            return_exceptions=True,
        )
        assert [type(each) is TooManyTopics for each in made] == [False, False, True]
        await world.topics.get(TOPICS[5], create=True)
        with pytest.raises(TooManyTopics):
            await world.topics.get(TOPICS[4], create=True)

    run(scenario, max_topics_per_namespace=5)


def test_a_scalable_topic_takes_one_place_whatever_its_segments() -> None:
    async def scenario(world: World) -> None:
        scalable = world.topics.scalable
        names = [each._replace(domain=SCALABLE) for each in TOPICS]
        made = await asyncio.gather(
            *(scalable.create(name, 5) for name in names[:3]), return_exceptions=True
        )
        assert [type(each) is TooManyTopics for each in made] == [False, False, True]
        await scalable.split(names[0], 0)
        await scalable.delete(names[1])
        await world.topics.get(TOPICS[5], create=True)
        with pytest.raises(TooManyTopics):
            await scalable.create(names[1])
        with pytest.raises(Conflict):
            await scalable.create(names[0])

    run(scenario, max_topics_per_namespace=2)


def test_clients_that_ask_for_a_partitioned_topic_at_once_all_get_it() -> None:
    async def scenario(world: World) -> None:
        found = await asyncio.gather(
            *(world.topics.partitions_for_client(TOPICS[0], auto_create=True) for _ in range(3)),
            return_exceptions=True,
        )
        assert found == [2, 2, 2]

    creation = {"allow_auto_topic_creation_type": "partitioned", "default_num_partitions": 2}
    run(scenario, max_topics_per_namespace=3, **creation)
