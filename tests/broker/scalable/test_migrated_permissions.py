"""What is granted on a topic that was made scalable, whose first segments have its former names."""

from typing import Any

import pytest
from test_migration import ORDERS, SCALABLE, migrate, scenario
from topics_world import World

from pybroker.base.names import TopicName, any_topic
from pybroker.broker.namespaces import permissions
from pybroker.broker.namespaces.permissions import OnTopic
from pybroker.broker.namespaces.tenants import Conflict


def test_what_is_granted_later_is_granted_on_the_segments_of_both_names() -> None:
    async def work(world: World) -> None:
        permissions = world.topics.permissions

        async def grant(name: TopicName, role: str, actions: list[str] | None) -> None:
            await permissions.set_on_topics([OnTopic(name, role, actions)])

        def granted() -> Any:
            by_topic = permissions.grants("public/default").topics
            assert by_topic.get(str(SCALABLE), {}) == by_topic.get(str(ORDERS), {})
            return dict(by_topic.get(str(SCALABLE), {}))

        await migrate(world)
        await grant(SCALABLE, "ann", ["consume"])
        await grant(ORDERS, "bob", ["produce"])
        assert granted() == {"ann": ["consume"], "bob": ["produce"]}
        await grant(ORDERS, "ann", None)
        await grant(SCALABLE, "bob", None)
        assert granted() == {}
        part, other = ORDERS.partition_at(0), any_topic("topic://public/default/other")
        await world.topics.scalable.create(other)
        await grant(other, "ann", ["consume"])
        await grant(part, "ann", ["consume"])
        assert sorted(permissions.grants("public/default").topics) == sorted(
            map(str, (other, part))
        )

    scenario(work)


def test_a_full_record_of_permissions_does_not_keep_a_topic_from_being_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(world: World) -> None:
        granted = world.topics.permissions
        await granted.grant_on_topic(ORDERS, "ann", ["consume"])
        monkeypatch.setattr(permissions, "MAX_BYTES", 10)
        with pytest.raises(Conflict):
            await granted.grant_on_topic(ORDERS, "bob", ["consume"])
        await migrate(world)
        assert str(SCALABLE) in granted.grants("public/default").topics

    scenario(work)
