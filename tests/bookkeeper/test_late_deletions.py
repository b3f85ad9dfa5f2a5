"""Deletions of keys that another process has recreated meanwhile, on the simulated cluster."""

import asyncio
from unittest.mock import AsyncMock, Mock

import pytest
from apache_storage import storage  # noqa: F401
from simulated_storage import life, process, run  # noqa: F401
from sortedcontainers import SortedDict

from managed_ledger import deletion
from managed_ledger.errors import BadVersion
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger_metadata import LedgerList, cursor_key, ledgers_key
from managed_ledger.storage.backend import ABSENT, KeyAt
from pybroker.base.names import TopicName
from pybroker.broker.deletion.deletions import Deletions, Doomed
from pybroker.broker.deletion.topic_storage import TopicStorage
from pybroker.broker.namespaces import tenants
from pybroker.simulation.world import SimulatedClock

TOPIC = TopicName.parse("persistent://public/default/orders")
LOG = TOPIC.ledger_name
KEY = ledgers_key(LOG)
DECISION = Doomed(TOPIC).key


@pytest.fixture
def out_of_date(storage, run):  # noqa: F811
    """Runs `scenario(one, known)`: `one` has an old value of the key in memory, and another process
    has deleted and recreated the key.
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
            await one.metadata.put(KEY, known.value, known.version)  # the key still exists

    run(scenario())


PARTITIONS = tenants.partitions_key(TOPIC)


@pytest.mark.parametrize("key", ["anything/1", KEY, PARTITIONS])
def test_nothing_is_changed_once_its_reason_is_gone(storage, run, key):  # noqa: F811
    """Another broker has finished the deletion, and the name is in use again, but this broker does
    not know it yet.
    """

    async def scenario():
        async with storage() as one, storage() as two:
            value = LedgerList().encode() if key == KEY else b'{"partitions": 3}'
            await one.metadata.put(key, value)
            await one.metadata.put(DECISION, b"decided")
            decided = one.metadata.get(DECISION)
            await one.metadata.put("anything/2", b"", only_while=KeyAt(DECISION, 0))
            await one.metadata.delete("anything/2", only_while=KeyAt(DECISION, 0))
            await two.seen()
            await two.metadata.delete(DECISION)
            await one.seen()
            one.metadata._durable[DECISION] = decided
            known = one.metadata.get(key)
            for beside in (0, 1):  # alone, and with another change in the transaction
                others = [one.metadata.put(f"beside/{each}", b"x") for each in range(beside)]
                with pytest.raises(BadVersion):
                    await one.metadata.delete(key, only_while=KeyAt(DECISION, 0))
                with pytest.raises(BadVersion):
                    await one.metadata.put(key, value, known.version, only_while=KeyAt(DECISION, 0))
                await asyncio.gather(*others)
            await one.seen()
            assert one.metadata.get(key) == known

    run(scenario())


@pytest.mark.parametrize("key", ["anything/1", KEY, PARTITIONS])
def test_nothing_is_changed_once_there_is_what_must_not_be_there(storage, run, key):  # noqa: F811
    """Another broker has written it, and this one does not know it yet."""

    async def scenario():
        async with storage() as one, storage() as two:
            value, absent = LedgerList().encode(), KeyAt(DECISION, ABSENT)
            if key != KEY:
                value = b'{"partitions": 3}'
            await one.metadata.put(key, value, only_while=absent)
            await one.metadata.put("anything/2", b"", only_while=absent)
            await one.metadata.delete("anything/2", only_while=absent)
            await one.metadata.delete("anything/2", only_while=absent)
            known = one.metadata.get(key)
            await two.metadata.put(DECISION, b"decided")
            await one.seen()
            one.metadata._durable.pop(DECISION)
            for beside in (0, 1):  # alone, and with another change in the transaction
                others = [one.metadata.put(f"beside/{each}", b"x") for each in range(beside)]
                with pytest.raises(BadVersion):
                    await one.metadata.delete(key, only_while=absent)
                with pytest.raises(BadVersion):
                    await one.metadata.put(key, value, known.version, only_while=absent)
                await asyncio.gather(*others)
            await one.seen()
            assert one.metadata.get(key) == known

    run(scenario())


def test_what_must_not_be_there_costs_one_request_for_each_change(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one:
            zookeeper, absent = one.backend.zookeeper, KeyAt("anything/else", ABSENT)
            await one.metadata.put("anything/1", b"a", only_while=absent)
            zookeeper.make_parents = AsyncMock(side_effect=zookeeper.make_parents)
            for _ in range(3):
                await one.metadata.put("anything/1", b"b", only_while=absent)
            assert zookeeper.make_parents.await_args_list == []

    run(scenario())


def test_a_folder_that_somebody_has_removed_is_made_again(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one:
            absent = KeyAt("other/1", ABSENT)
            for each in (b"a", b"b"):
                await one.metadata.put("anything/1", each, only_while=absent)
                path = one.backend._metadata._formats.path_of("other/1").rpartition("/")[0]
                await one.backend.zookeeper.delete(path)
            await one.metadata.delete("anything/1", only_while=absent)
            assert one.metadata.get("anything/1") is None
            await one.metadata.put("anything/1", b"c", -1)  # it was really deleted

    run(scenario())


@pytest.mark.parametrize("what", ["managed ledger", "subscription"])
def test_a_late_deletion_spares_a_managed_ledger_and_a_subscription_that_were_made_anew(
    storage,  # noqa: F811
    run,  # noqa: F811
    life,  # noqa: F811
    what,
):
    """Even if all versions are the same as those that the late broker knows."""

    async def made(factory):
        ledger = await factory.open(LOG)
        cursor = await ledger.open_cursor("sub")
        cursor.mark_delete(await ledger.append_one(b"entry"))
        await ledger.flush_cursors()
        return ledger

    async def scenario():
        async with storage() as late, storage() as other:
            factory = ManagedLedgerFactory(other.backend, SimulatedClock(life.world))
            await made(factory)
            await other.metadata.put(DECISION, b"decided")
            await late.seen()
            keys = [KEY, cursor_key(LOG, "sub"), DECISION]
            known = {key: late.metadata.get(key) for key in keys}
            await factory.delete(LOG)
            await other.metadata.delete(DECISION)
            ledger = await made(factory)
            await late.seen()
            for key in keys:
                late.metadata._durable[key] = known[key]

            behind = ManagedLedgerFactory(late.backend, SimulatedClock(life.world))
            with pytest.raises(BadVersion):
                if what == "managed ledger":
                    await behind.delete(LOG, KeyAt(DECISION, 0))
                else:
                    belongings = TopicStorage(behind, late.metadata, Mock())
                    await belongings.remove_subscription(TOPIC, "sub", lambda: KeyAt(DECISION, 0))
            await behind.close()
            await ledger.append_one(b"another")
            await factory.close()
        async with storage() as later:
            factory = ManagedLedgerFactory(later.backend, SimulatedClock(life.world))
            ledger = await factory.open(LOG)
            assert ledger.cursors["sub"].backlog(ledger.last_confirmed) == 1
            await factory.close()

    run(scenario())


def test_a_deletion_that_another_broker_has_decided_again_is_carried_out_as_decided_last(
    storage,  # noqa: F811
    run,  # noqa: F811
    life,  # noqa: F811
):
    partition = TOPIC.partition_at(1).ledger_name

    async def scenario():
        async with storage() as late, storage() as other:
            await other.metadata.put(DECISION, Doomed(TOPIC).encode())
            await late.seen()
            known = late.metadata.get(DECISION)
            factory = ManagedLedgerFactory(other.backend, SimulatedClock(life.world))
            await factory.open(partition)
            await factory.close()
            await other.metadata.put(DECISION, Doomed(TOPIC, partitions=2).encode())
            await late.seen()
            late.metadata._durable[DECISION] = known

            behind = ManagedLedgerFactory(late.backend, SimulatedClock(life.world))
            permissions = Mock(forget_topic=AsyncMock())
            await Deletions(behind, late.metadata, permissions)._remove(Doomed(TOPIC))
            assert not behind.exists(partition)
            await behind.close()
            await other.seen()
            assert other.metadata.get(DECISION) is None

    run(scenario())


def test_who_finishes_a_deletion_late_leaves_the_tombstone_of_a_second_one(
    storage,  # noqa: F811
    run,  # noqa: F811
    life,  # noqa: F811
):
    """Both tombstones say the same and were written once, so they have the same version."""
    first, second = f"{DECISION}@1", f"{DECISION}@2"

    async def scenario():
        async with storage() as late, storage() as other:
            await other.metadata.put(first, Doomed(TOPIC).encode())
            await late.seen()
            known = late.metadata.get(first)
            await other.metadata.delete(first)
            await other.metadata.put(second, Doomed(TOPIC).encode())
            await late.seen()
            late.metadata._durable = SortedDict({first: known})

            behind = ManagedLedgerFactory(late.backend, SimulatedClock(life.world))
            permissions = Mock(forget_topic=AsyncMock())
            await Deletions(behind, late.metadata, permissions)._remove(Doomed(TOPIC))
            await behind.close()
            await other.seen()
            assert other.metadata.get(second) == known

    run(scenario())
