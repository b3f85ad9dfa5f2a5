"""A record of a scalable topic that cannot be read keeps nobody from the others."""

import asyncio
from collections.abc import Sequence
from typing import Final

from test_migration import SCALABLE, scenario
from topics_world import World

from pybroker.base.names import any_topic
from pybroker.broker.namespaces.tenants import scalable_key
from pybroker.broker.scalable.namespaces import ScalableTopicWatches

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
