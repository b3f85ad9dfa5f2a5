"""Tenants, namespaces and partition counts: what is kept, what is refused."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.config import BrokerConfig
from pybroker.base.errors import InvalidTopicName, NotAllowed
from pybroker.base.names import TopicName
from pybroker.broker.tenants import Conflict, NotFound, Tenants

ORDERS = TopicName.parse("orders")


def run(scenario: Callable[[Tenants], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        backend = MemoryBackend()
        await backend.open()
        await scenario(Tenants(backend.metadata, BrokerConfig()))
        await backend.close()

    asyncio.run(go())


def test_what_a_standalone_pulsar_has_is_there() -> None:
    async def scenario(tenants: Tenants) -> None:
        assert tenants.tenants() == ["public", "pulsar"]
        assert tenants.namespaces("public") == ["public/default"]
        assert tenants.tenant("public")["allowedClusters"] == ["standalone"]

    run(scenario)


def test_a_namespace_needs_its_tenant_and_a_tenant_outlives_its_namespaces() -> None:
    async def scenario(tenants: Tenants) -> None:
        with pytest.raises(NotFound):
            await tenants.create_namespace("acme/prod", {})
        await tenants.put_tenant("acme", {"adminRoles": ["boss"]})
        await tenants.create_namespace("acme/prod", {"retention": 1})
        with pytest.raises(Conflict):
            await tenants.create_namespace("acme/prod", {})
        with pytest.raises(Conflict):
            await tenants.delete_tenant("acme")
        await tenants.delete_namespace("acme/prod")
        await tenants.delete_tenant("acme")
        assert tenants.tenants() == ["public", "pulsar"]

    run(scenario)


def test_who_has_deleted_a_namespace_leaves_the_mark_of_another_deletion() -> None:
    async def scenario(tenants: Tenants) -> None:
        await tenants.create_namespace("public/gone", {})
        async with tenants.going_everywhere("public/gone"):
            async with tenants.going_everywhere("public/gone"):
                pass
            with pytest.raises(NotFound):  # only the own mark is gone
                tenants.check_going("public/gone")
        first = tenants.going_everywhere("public/gone")
        await first.__aenter__()
        async with tenants.going_everywhere("public/gone"):
            await first.__aexit__(None, None, None)
            tenants.check_going("public/gone")
        assert tenants.takes_topics("public/gone")

    run(scenario)


def test_built_in_namespaces_stay() -> None:
    async def scenario(tenants: Tenants) -> None:
        for name in ("public/default", "pulsar/system"):
            with pytest.raises(NotAllowed):
                await tenants.delete_namespace(name)

    run(scenario)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "a\x00", "ä"])
def test_a_tenant_s_name_is_one_plain_word(name: str) -> None:
    async def scenario(tenants: Tenants) -> None:
        with pytest.raises(InvalidTopicName):
            await tenants.put_tenant(name, {})

    run(scenario)


@pytest.mark.parametrize("name", ["public", "public/", "public/a/b", "public/..", "/a"])
def test_a_namespace_s_name_is_two(name: str) -> None:
    async def scenario(tenants: Tenants) -> None:
        with pytest.raises(InvalidTopicName):
            await tenants.create_namespace(name, {})

    run(scenario)


@pytest.mark.parametrize("count", [0, -1, 100_001, 10**9])
def test_a_number_of_partitions_out_of_range_is_refused(count: int) -> None:
    async def scenario(tenants: Tenants) -> None:
        with pytest.raises(NotAllowed):
            await tenants.set_partitions(ORDERS, count)

    run(scenario)


def test_partitioned_topics_are_listed_by_namespace() -> None:
    async def scenario(tenants: Tenants) -> None:
        await tenants.set_partitions(ORDERS, 3)
        await tenants.set_partitions(TopicName.parse("persistent://pulsar/system/other"), 3)
        assert tenants.partitioned_topics("public/default") == [ORDERS]

    run(scenario)


def test_what_two_make_at_once_is_made_by_one() -> None:
    async def scenario(tenants: Tenants) -> None:
        making = [tenants.create_tenant("acme", {"adminRoles": [role]}) for role in ("a", "b")]
        made = await asyncio.gather(*making, return_exceptions=True)
        assert [type(each) for each in made] == [type(None), Conflict]
        assert tenants.tenant("acme")["adminRoles"] == ["a"]
        making = [tenants.create_namespace("acme/prod", {"retention": days}) for days in (1, 2)]
        made = await asyncio.gather(*making, return_exceptions=True)
        assert [type(each) for each in made] == [type(None), Conflict]

    run(scenario)


def test_no_namespace_comes_to_a_tenant_that_goes() -> None:
    async def scenario(tenants: Tenants) -> None:
        for first in (True, False):
            await tenants.create_tenant("acme", {})
            work = [tenants.delete_tenant("acme"), tenants.create_namespace("acme/prod", {})]
            outcomes = await asyncio.gather(*work[:: 1 if first else -1], return_exceptions=True)
            assert [type(each) for each in outcomes] == [
                type(None),
                NotFound if first else Conflict,
            ]
            assert ("acme" in tenants.tenants()) is tenants.has_namespace("acme/prod") is not first
            await tenants.update_tenant("public", {"adminRoles": ["boss"]})

    run(scenario)


def test_a_tenant_that_goes_while_it_is_changed_does_not_come_again() -> None:
    async def scenario(tenants: Tenants) -> None:
        await tenants.create_tenant("acme", {})
        work = tenants.delete_tenant("acme"), tenants.update_tenant("acme", {"adminRoles": ["b"]})
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        assert isinstance(outcomes[1], NotFound)
        assert "acme" not in tenants.tenants()

    run(scenario)
