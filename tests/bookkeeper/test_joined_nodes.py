"""Keys that share a node in ZooKeeper: a namespace's policies and its permissions."""

import asyncio
import json

import pytest
from apache_storage import storage  # noqa: F401
from simulated_storage import life, process, run  # noqa: F401

from managed_ledger.errors import BadVersion, CorruptStorage

PATH = "/admin/policies/acme/shop"
POLICIES, PERMISSIONS = "/namespaces/acme/shop", "/permissions/acme/shop"
TTL = b'{"message_ttl_in_seconds": 5}'
GRANTED = b'{"namespace_auth": {"bob": ["produce"]}}'


def test_what_two_brokers_put_at_the_same_time_is_all_there(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one, storage() as two:
            await one.metadata.put(POLICIES, b"{}")
            await two.seen()
            puts = [one.metadata.put(POLICIES, TTL), two.metadata.put(PERMISSIONS, GRANTED, -1)]
            await asyncio.gather(*puts)
            for each in (one, two):
                await each.seen()
                assert each.value(POLICIES) == json.loads(TTL)
                assert each.value(PERMISSIONS) == json.loads(GRANTED)

    run(scenario())


def test_both_can_be_put_and_deleted_in_one_go(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one:
            puts = [one.metadata.put(POLICIES, TTL), one.metadata.put(PERMISSIONS, GRANTED)]
            await asyncio.gather(*puts)
            node = json.loads(await one.node(PATH))
            assert node["auth_policies"]["namespace_auth"] == {"bob": ["produce"]}
            deletions = [one.metadata.delete(PERMISSIONS), one.metadata.delete(POLICIES)]
            await asyncio.gather(*deletions)
            await one.seen()
            assert one.value(POLICIES) is None
            assert one.value(PERMISSIONS) is None
            assert await one.metadata.put(POLICIES, b"{}", -1) == 0

    run(scenario())


def test_a_change_of_the_other_part_refuses_nothing(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one, storage() as two:
            await one.metadata.put(POLICIES, TTL)
            await two.seen()
            version = two.metadata.get(POLICIES).version
            await one.metadata.put(PERMISSIONS, GRANTED)
            await two.metadata.put(POLICIES, b"{}", version)
            assert json.loads(await one.node(PATH))["auth_policies"]["namespace_auth"]

    run(scenario())


def test_a_change_of_the_same_part_that_was_not_seen_is_refused(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one, storage() as two:
            await one.metadata.put(POLICIES, b"{}")
            await two.seen()
            version = two.metadata.get(POLICIES).version
            changed = one.metadata.put(POLICIES, TTL)
            late = two.metadata.put(POLICIES, b'{"max_topics_per_namespace": 7}', version)
            with pytest.raises(BadVersion, match="another process changed it"):
                await asyncio.gather(changed, late)
            await asyncio.gather(one.seen(), two.seen())
            known = two.value(POLICIES)
            assert known == one.value(POLICIES)
            assert len(known) == 1

    run(scenario())


def test_an_own_change_is_no_news(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one:
            heard = []
            one.metadata.watch("/", heard.append)
            await one.metadata.put(POLICIES, TTL)
            await one.metadata.put(PERMISSIONS, GRANTED)
            await one.seen()
            assert heard == [POLICIES, PERMISSIONS]

    run(scenario())


def test_what_cannot_be_read_concerns_its_own_namespace_and_can_be_repaired(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one:
            await one.metadata.put(POLICIES, TTL)
            await one.metadata.put("/namespaces/acme/other", TTL)
            await one.backend.zookeeper.set(PATH, b"[1]")
            await one.seen()
            with pytest.raises(CorruptStorage, match=r"acme/shop.*correct or delete that node"):
                one.metadata.get(POLICIES)
            assert one.value("/namespaces/acme/other") == json.loads(TTL)
            with pytest.raises(CorruptStorage):
                await one.metadata.put(POLICIES, TTL)
            await one.backend.zookeeper.set(PATH, b'{"message_ttl_in_seconds": 9}')
            await one.seen()
            assert one.value(POLICIES) == {"message_ttl_in_seconds": 9}
        async with storage() as again:
            assert again.value(POLICIES) == {"message_ttl_in_seconds": 9}

    run(scenario())
