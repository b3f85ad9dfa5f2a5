"""A subscription of a scalable topic as a whole, while its segments change."""

from test_migration import SCALABLE, migrate, scenario
from topics_world import World

from pybroker.broker.scalable.subscriptions import WholeSubscriptions


def test_segments_that_are_pruned_meanwhile_are_passed_over() -> None:
    async def work(world: World) -> None:
        topics = world.topics
        record = await migrate(world)
        whole = WholeSubscriptions(topics, topics.scalable)
        found = []
        async for topic in whole.each_segment(SCALABLE):
            found.append(str(topic.name))
            if len(found) == 1:
                await topics.scalable.prune(SCALABLE, [1])
        assert len(found) == len(record.segments) - 1

    scenario(work)
