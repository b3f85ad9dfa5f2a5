"""Permissions of roles that use the V5 SDK."""

from permission_world import FORBIDDEN, World
from v5_raw import join, next_assignment, next_layout, segments_of, watch_layout


def test_who_may_no_longer_hears_of_no_more_partitions_and_its_segments_go_to_others(
    world: World,
) -> None:
    world.grant("alice", "consume")
    parts = f"{world.on_topic()}/partitions"
    world.admin("PUT", parts, 2)
    with world.raw("alice") as alice, world.raw("boss") as boss:
        for client in (alice, boss):
            assert len(watch_layout(client, world.topic).dag.segments) == 2
        assert segments_of(join(alice, world.topic, "a")) == [0, 1]
        assert segments_of(join(boss, world.topic, "b")) == [1]
        assert segments_of(next_assignment(alice)) == [0]
        world.revoke("alice")
        world.admin("POST", parts, 4)
        assert len(next_layout(boss).dag.segments) == 4
        assert segments_of(next_assignment(boss)) == [1, 3]
        assert alice.kinds_before_pong() == []
        assert watch_layout(alice, world.topic).error == FORBIDDEN
        assert join(alice, world.topic, "a").error == FORBIDDEN
