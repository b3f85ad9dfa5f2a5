"""What a process deletes that another one has written anew meanwhile, on the simulated cluster."""

import asyncio

import pytest
from apache_storage import storage  # noqa: F401
from simulated_storage import life, process, run  # noqa: F401

from managed_ledger import deletion
from managed_ledger.errors import BadVersion
from managed_ledger.ledger_metadata import LedgerList, ledgers_key
from pybroker.base.names import TopicName
from pybroker.broker import tenants

LOG = "public/default/persistent/orders"
KEY = ledgers_key(LOG)


@pytest.fixture
def out_of_date(storage, run):  # noqa: F811
    """Runs `scenario(one, known)` where `one` knows a value of the key, and another process has
    deleted it and made it anew.
    """

    def scene(key, values, anew, scenario):
        async def go():
            async with storage() as one, storage() as two:
                for value in values:
                    await one.metadata.put(key, value)
                known = one.metadata.get(key)
                await two.seen()
                await two.metadata.delete(key)
                await two.metadata.put(key, anew)
                await one.seen()
                one.metadata._durable[key] = known
                await scenario(one, known)
                await one.seen()
                assert one.metadata.get(key) == (anew, 0)

        run(go())

    return scene


def test_a_deletion_that_expects_a_version_is_refused_by_zookeeper(out_of_date):
    async def scenario(one, known):
        with pytest.raises(BadVersion):
            await one.metadata.delete("anything/1", known.version)

    out_of_date("anything/1", [b"a", b"b"], b"new", scenario)


def test_the_end_of_a_slow_deletion_spares_a_managed_ledger_that_was_made_anew(out_of_date):
    async def scenario(one, known):
        await deletion._forget(one.metadata, KEY)

    lists = [LedgerList().encode(), LedgerList(deleted=True).encode()]
    anew = LedgerList(properties={"made": "anew"}).encode()
    out_of_date(KEY, lists, anew, scenario)


def test_the_end_of_a_slow_deletion_spares_what_this_process_does_not_know_yet(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one, storage() as two:
            await two.metadata.put(KEY, LedgerList(properties={"made": "anew"}).encode())
            await one.seen()
            known = one.metadata._durable.pop(KEY)
            await deletion._forget(one.metadata, KEY)
            one.metadata._durable[KEY] = known
            await one.metadata.put(KEY, known.value, known.version)  # it is still there

    run(scenario())


PARTITIONS = tenants.partitions_key(TopicName.parse("persistent://public/default/orders"))


@pytest.mark.parametrize("key", ["anything/1", KEY, PARTITIONS])
def test_nothing_is_deleted_once_its_reason_is_gone(storage, run, key):  # noqa: F811
    """Another broker has finished the deletion, and the name is in use again: this one cannot know
    that yet.
    """

    async def scenario():
        async with storage() as one, storage() as two:
            value = LedgerList().encode() if key == KEY else b'{"partitions": 3}'
            await one.metadata.put(key, value)
            await one.metadata.put("/deletions/orders", b"decided")
            decided = one.metadata.get("/deletions/orders")
            await one.metadata.delete("anything/2", only_while=("/deletions/orders", 0))
            await two.seen()
            await two.metadata.delete("/deletions/orders")
            await one.seen()
            one.metadata._durable["/deletions/orders"] = decided
            known = one.metadata.get(key)
            for beside in (0, 1):  # alone, and in one transaction with others
                others = [one.metadata.put(f"beside/{each}", b"x") for each in range(beside)]
                with pytest.raises(BadVersion):
                    await one.metadata.delete(key, only_while=("/deletions/orders", 0))
                await asyncio.gather(*others)
            await one.seen()
            await one.metadata.put(key, value, known.version)  # it is still there

    run(scenario())
