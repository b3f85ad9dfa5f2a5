"""Tenants, namespaces and partition counts: what is kept, what is refused."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from managed_ledger.errors import BadVersion
from managed_ledger.storage.backend import KeyAt
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import InvalidTopicName, NotAllowed
from pybroker.base.names import TopicName
from pybroker.broker.namespaces.tenants import Conflict, NotFound, Tenants, partitions_key

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


GONE = "public/gone"


def test_a_deletion_of_a_namespace_is_joined_by_the_next_one() -> None:
    async def scenario(tenants: Tenants) -> None:
        await tenants.create_namespace(GONE, {})
        mark = await tenants.mark_going(GONE, force=False)
        assert await tenants.mark_going(GONE, force=False) == mark
        forced = await tenants.mark_going(GONE, force=True)
        assert forced != mark and forced.forced
        assert await tenants.mark_going(GONE, force=False) in (mark, forced)
        assert sorted(tenants.marks(GONE)) == sorted([mark, forced])
        assert not tenants.takes_topics(GONE)

    run(scenario)


def test_a_deletion_that_is_given_up_does_not_end_a_forced_one() -> None:
    async def scenario(tenants: Tenants) -> None:
        await tenants.create_namespace(GONE, {})
        mark = await tenants.mark_going(GONE, force=False)
        forced = await tenants.mark_going(GONE, force=True)
        await tenants.unmark(GONE, forced_too=False)
        with pytest.raises(NotFound):
            tenants.check_marked(GONE, mark)
        tenants.check_marked(GONE, forced)
        await tenants.unmark(GONE, forced_too=True)
        assert tenants.takes_topics(GONE)

    run(scenario)


def test_who_deletes_late_cannot_take_a_second_deletion_for_his_own() -> None:
    async def scenario(tenants: Tenants) -> None:
        await tenants.create_namespace(GONE, {})
        late = await tenants.mark_going(GONE, force=True)
        await tenants.delete_namespace(GONE, late.at)
        await tenants.unmark(GONE, forced_too=True)
        await tenants.create_namespace(GONE, {})
        await tenants.mark_going(GONE, force=False)
        with pytest.raises(NotFound):
            tenants.check_marked(GONE, late)
        with pytest.raises(BadVersion):
            await tenants.delete_namespace(GONE, late.at)
        with pytest.raises(BadVersion):
            await tenants.unmark(GONE, forced_too=True, own=late)
        assert tenants.has_namespace(GONE) and tenants.marks(GONE)

    run(scenario)


def test_who_ends_a_deletion_ends_others_that_began_with_it() -> None:
    async def scenario(tenants: Tenants) -> None:
        await tenants.create_namespace(GONE, {})
        await tenants.mark_going(GONE, force=False)
        own = await tenants.mark_going(GONE, force=True)
        await tenants.unmark(GONE, forced_too=True, own=own)
        assert not tenants.marks(GONE)

    run(scenario)


def test_a_namespace_is_not_created_before_its_deletion_has_ended() -> None:
    async def scenario(tenants: Tenants) -> None:
        await tenants.create_namespace(GONE, {})
        mark = await tenants.mark_going(GONE, force=True)
        await tenants.delete_namespace(GONE, mark.at)
        with pytest.raises(Conflict, match="is being deleted"):
            await tenants.create_namespace(GONE, {})
        await tenants.unmark(GONE, forced_too=True)
        await tenants.create_namespace(GONE, {})
        assert tenants.takes_topics(GONE)

    run(scenario)


def test_partitions_are_not_doomed_by_a_deletion_that_has_ended() -> None:
    async def scenario(tenants: Tenants) -> None:
        await tenants.create_namespace(GONE, {})
        mark = await tenants.mark_going(GONE, force=True)
        await tenants.unmark(GONE, forced_too=True)
        await tenants.set_partitions(ORDERS, 3)
        with pytest.raises(BadVersion):
            await tenants.doom_partitions(ORDERS, mark.at)
        assert tenants.partitions(ORDERS) == 3 and tenants.doom_of(ORDERS) is None
        await tenants.doom_partitions(ORDERS)
        assert tenants.doom_of(ORDERS) == KeyAt(partitions_key(ORDERS), 1)
        await tenants.doom_partitions(ORDERS)  # joins it
        assert tenants.doom_of(ORDERS) == KeyAt(partitions_key(ORDERS), 1)

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
