"""Grants in the metadata: simultaneous changes, and namespaces deleted meanwhile."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName
from pybroker.broker.namespaces import permissions
from pybroker.broker.namespaces.permissions import OnTopic, Permissions
from pybroker.broker.namespaces.tenants import PERMISSIONS, Conflict, NotFound, Tenants
from pybroker.security.authorization import Grants

NAMESPACE = "public/granted"


class World:
    def __init__(self, backend: MemoryBackend) -> None:
        self.tenants = Tenants(backend.metadata, BrokerConfig())
        self.permissions = Permissions(backend.metadata, self.tenants)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def scene() -> None:
        backend = MemoryBackend()
        await backend.open()
        world = World(backend)
        await world.tenants.create_namespace(NAMESPACE, {})
        await scenario(world)
        await backend.close()

    asyncio.run(scene())


def test_changes_at_once_are_all_kept() -> None:
    async def scenario(world: World) -> None:
        roles = [f"role-{number}" for number in range(20)]
        await asyncio.gather(*(world.permissions.grant(NAMESPACE, r, ["produce"]) for r in roles))
        assert sorted(world.permissions.grants(NAMESPACE).namespace) == sorted(roles)

    run(scenario)


def test_names_that_nobody_has_are_not_kept_however_many_are_asked_for() -> None:
    async def scenario(world: World) -> None:
        tracemalloc.start()
        try:
            for number in range(100):
                made_up = f"{number}{'x' * 100_000}"
                assert world.permissions.tenant_admins(made_up) == ()
                assert world.permissions.grants(f"{made_up}/ns") == Grants()
            assert tracemalloc.get_traced_memory()[0] < 1_000_000
        finally:
            tracemalloc.stop()

    run(scenario)


def test_what_a_namespace_grants_has_a_bound_and_can_always_be_revoked() -> None:
    async def scenario(world: World) -> None:
        granted, long_ones = world.permissions, [f"{n}{'r' * 1000}" for n in range(530)]
        with pytest.raises(Conflict, match="revoke some"):
            await granted.set_subscription_roles(NAMESPACE, "s", long_ones)
        await granted.set_subscription_roles(NAMESPACE, "s", long_ones[:500])
        with pytest.raises(Conflict):
            await granted.grant(NAMESPACE, "r" * 30_000, ["produce"])
        assert len(granted.grants(NAMESPACE).subscriptions["s"]) == 500
        await granted.revoke_on_subscription(NAMESPACE, "s", long_ones[0])
        assert len(granted.grants(NAMESPACE).subscriptions["s"]) == 499

    run(scenario)


def test_grants_on_many_topics_are_one_change_of_each_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await world.tenants.create_namespace("public/other", {})
        topics = [
            TopicName.parse(f"persistent://{namespace}/t{number}")
            for number in range(100)
            for namespace in (NAMESPACE, "public/other")
        ]
        written, change = [], world.permissions._change
        monkeypatch.setattr(
            world.permissions,
            "_change",
            lambda name, how: written.append(name) or change(name, how),
        )
        await world.permissions.set_on_topics(OnTopic(t, "alice", ["consume"]) for t in topics)
        assert written == [NAMESPACE, "public/other"]
        found = world.permissions.grants(NAMESPACE).topics
        assert found == {str(t): {"alice": ["consume"]} for t in topics[::2]}
        await world.permissions.set_on_topics(OnTopic(t, "alice", None) for t in topics[2:])
        assert list(world.permissions.grants(NAMESPACE).topics) == [str(topics[0])]

    run(scenario)


def test_the_admins_of_a_tenant_are_those_of_its_record_now() -> None:
    async def scenario(world: World) -> None:
        for roles in (["alice"], ["bob", "carol"], []):
            await world.tenants.put_tenant("company", {"adminRoles": roles})
            assert sorted(world.permissions.tenant_admins("company")) == roles
        await world.tenants.delete_tenant("company")
        assert not world.permissions.tenant_admins("company")

    run(scenario)


def test_what_was_granted_before_there_was_a_bound_can_be_revoked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await world.permissions.set_subscription_roles(NAMESPACE, "s", ["alice", "bob", "carol"])
        monkeypatch.setattr(permissions, "MAX_BYTES", 10)
        await world.permissions.revoke_on_subscription(NAMESPACE, "s", "bob")
        assert world.permissions.grants(NAMESPACE).subscriptions == {"s": ["alice", "carol"]}

    run(scenario)


def test_roles_that_lose_a_subscription_at_once_all_lose_it() -> None:
    async def scenario(world: World) -> None:
        permissions, roles = world.permissions, ["alice", "bob", "carol"]
        await permissions.set_subscription_roles(NAMESPACE, "s", roles)
        await asyncio.gather(
            *(permissions.revoke_on_subscription(NAMESPACE, "s", role) for role in roles[:2])
        )
        assert permissions.grants(NAMESPACE).subscriptions == {"s": ["carol"]}

    run(scenario)


def test_a_topic_that_goes_takes_no_grants_of_topics_that_begin_like_it() -> None:
    async def scenario(world: World) -> None:
        whole = f"persistent://{NAMESPACE}/t"
        names = [whole, f"{whole}-partition-0", f"{whole}-partition-x", f"{whole}2"]
        for name in names:
            await world.permissions.grant_on_topic(TopicName.parse(name), "alice", ["produce"])
        await world.permissions.forget_topic(TopicName.parse(whole))
        assert list(world.permissions.grants(NAMESPACE).topics) == names[2:]

    run(scenario)


@pytest.mark.parametrize("granted_before", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_who_gets_a_namespaces_name_does_not_inherit_its_grants(
    granted_before: bool, late: bool
) -> None:
    async def scenario(world: World) -> None:
        if granted_before:
            await world.permissions.grant(NAMESPACE, "bob", ["consume"])
        going = world.tenants.delete_namespace(NAMESPACE)
        granting = world.permissions.grant(NAMESPACE, "alice", ["produce"])
        both = (granting, going) if late else (going, granting)
        await asyncio.gather(*both, return_exceptions=True)
        await world.tenants.create_namespace(NAMESPACE, {})
        assert not world.permissions.grants(NAMESPACE).namespace

    run(scenario)


def test_a_grant_that_came_too_late_takes_none_from_the_namespace_made_anew() -> None:
    async def scenario(world: World) -> None:
        metadata, has = world.permissions._metadata, world.tenants.has_namespace
        value = b'{"namespace_auth": {"carol": ["consume"]}}'
        looks: list[str] = []
        made: list[Awaitable[int]] = []

        def has_namespace(name: str) -> bool:
            """The namespace is deleted before the second look, and created anew just after it."""
            looks.append(name)
            if len(looks) < 2:
                return has(name)
            made.append(metadata.put(PERMISSIONS + NAMESPACE, value))
            return False

        world.tenants.has_namespace = has_namespace  # type: ignore[method-assign]
        with pytest.raises(NotFound):
            await world.permissions.grant(NAMESPACE, "alice", ["produce"])
        world.tenants.has_namespace = has  # type: ignore[method-assign]
        await asyncio.gather(*made)
        assert list(world.permissions.grants(NAMESPACE).namespace) == ["carol"]

    run(scenario)


def test_what_does_not_exist_grants_nothing_and_takes_no_grants() -> None:
    async def scenario(world: World) -> None:
        assert not world.permissions.grants("nobody/nowhere").namespace
        assert not world.permissions.tenant_admins("nobody")
        with pytest.raises(NotFound):
            await world.permissions.grant("public/none", "alice", ["produce"])

    run(scenario)


def test_a_changed_policy_of_the_namespace_is_seen() -> None:
    async def scenario(world: World) -> None:
        assert not world.permissions.grants(NAMESPACE).prefix_mode
        assert world.permissions.grants(NAMESPACE) is world.permissions.grants(NAMESPACE)
        await world.permissions.set_subscription_roles(NAMESPACE, "s", ["b", "a", "a"])
        assert world.permissions.grants(NAMESPACE).subscriptions == {"s": ["a", "b"]}

    run(scenario)
