"""A record of a scalable topic that cannot be read keeps nobody from the others."""

import asyncio
from collections.abc import Sequence
from typing import Final

from test_migration import SCALABLE, scenario
from topics_world import World

from pybroker.base.names import any_topic
from pybroker.broker.namespaces.tenants import scalable_key
from pybroker.broker.scalable.namespaces import ScalableTopicWatches
from pybroker.broker.scalable.record import ACTIVE

BROKEN: Final = any_topic("topic://public/default/broken")
OTHER: Final = any_topic("topic://public/default/other")


def test_who_watches_a_namespace_hears_of_the_others() -> None:
    async def work(world: World) -> None:
        scalable, told = world.topics.scalable, list[tuple[list[str], list[str]]]()
        watches = ScalableTopicWatches(world.topics.tenants, scalable)

        def tell(added: Sequence[str], removed: Sequence[str]) -> None:
            told.append((list(added), list(removed)))

        await scalable.create(SCALABLE)
        await world.backend.metadata.put(scalable_key(BROKEN), b"nonsense", -1)
        there = await watches.begin("public/default", {"a": "b"}, tell)
        assert list(there.names) == []
        await scalable.create(OTHER, properties={"a": "b"})
        await asyncio.sleep(1.0)
        assert told == [([str(OTHER)], [])]
        await watches.close()

    scenario(work)


def test_metrics_tell_the_others() -> None:
    async def work(world: World) -> None:
        scalable, counts = world.topics.scalable, world.topics.scalable.counts
        for name in (SCALABLE, OTHER):
            await scalable.create(name)
            await scalable.settled(name)
        assert counts.states()[ACTIVE] == 2
        key = scalable_key(SCALABLE)
        stored = world.backend.metadata.get(key)
        assert stored is not None
        await world.backend.metadata.put(key, b"nonsense", stored.version)
        assert counts.states()[ACTIVE] == 1
        assert (counts.unwritable(), counts.draining_buckets()) == (0, 0)

    scenario(work)
