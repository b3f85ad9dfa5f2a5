"""The metadata in memory, reread while it changes, on the simulated cluster."""

import asyncio

import pytest
from apache_storage import storage  # noqa: F401
from simulated_storage import life, process, run  # noqa: F401

from managed_ledger.errors import BadVersion
from managed_ledger.storage.bookkeeper.looks import Looks
from managed_ledger.storage.bookkeeper.metadata import Metadata
from managed_ledger.storage.zookeeper.errors import ConnectionLoss
from managed_ledger.storage.zookeeper.operations import EventType

KEYS = ["anything/1", "anything/2"]


def delay_the_load(one, meanwhile):
    """Run `meanwhile` after everything has been read and before it is loaded into the table."""
    mirror = one.backend._metadata
    everything = mirror._everything

    async def late():
        found = await everything()
        await meanwhile()
        return found

    mirror._everything = late


def read_everything_anew(one):
    one.backend._metadata._event(EventType.RESYNC, "")


def test_what_changes_while_a_broker_starts_is_not_overwritten_by_what_it_read_first(storage, run):  # noqa: F811
    async def scenario():
        two = storage()

        async def change():
            await one.metadata.put(KEYS[0], b"new")
            await two.seen()
            assert two.metadata.get(KEYS[0]) == (b"new", 1)
            await one.metadata.delete(KEYS[1])
            await two.seen()

        async with storage() as one:
            for key in KEYS:
                await one.metadata.put(key, b"old")
            delay_the_load(two, change)
            async with two:
                assert two.metadata.get(KEYS[0]) == (b"new", 1)
                assert two.metadata.get(KEYS[1]) is None

    run(scenario())


def test_an_own_change_while_everything_is_read_anew_is_kept(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one:
            await one.metadata.put(KEYS[0], b"old")
            changed, go_on = asyncio.Event(), asyncio.Event()

            async def change():
                await one.metadata.put(KEYS[0], b"new")
                changed.set()
                await go_on.wait()

            delay_the_load(one, change)
            heard = []
            one.metadata.watch("anything/", lambda key: heard.append(one.metadata.get(key)))
            read_everything_anew(one)
            await changed.wait()
            go_on.set()
            await one.seen()
            assert set(heard) == {(b"new", 1)}

    run(scenario())


def test_a_change_of_another_process_is_seen_although_an_own_one_is_about_to_be_refused(
    storage,  # noqa: F811
    run,  # noqa: F811
    monkeypatch,
):
    held = asyncio.Event()
    write = Metadata._write

    async def written_late(self, batch):
        if any(each.key == "anything/1" and each.stored.value == b"own" for each in batch):
            await held.wait()
        return await write(self, batch)

    monkeypatch.setattr(Metadata, "_write", written_late)

    async def scenario():
        async with storage() as one, storage() as two:
            await one.metadata.put("anything/1", b"before")
            await two.seen()
            own = one.metadata.put("anything/1", b"own")
            await two.metadata.put("anything/1", b"other")
            seen = asyncio.ensure_future(one.seen())
            await asyncio.sleep(1.0)
            assert not seen.done()
            held.set()
            await seen
            assert one.metadata.get("anything/1").value == b"other"
            with pytest.raises(BadVersion):
                await own

    run(scenario())


def test_a_load_that_fails_is_repeated_before_the_failure_is_reported(storage, run):  # noqa: F811
    async def scenario():
        async with storage() as one, storage() as two:
            two.backend.zookeeper._watches.clear()  # no event reports the change
            mirror, failures = two.backend._metadata, [ConnectionLoss("the connection is lost")]
            everything = mirror._everything

            async def failing():
                if failures:
                    raise failures.pop()
                return await everything()

            mirror._everything = failing
            await one.metadata.put(KEYS[0], b"unseen")
            read_everything_anew(two)
            await two.seen()
            assert two.metadata.get(KEYS[0]) == (b"unseen", 0)

    run(scenario())


class Told:
    """Looks, and the names of the completed waits."""

    def __init__(self):
        self.looks = Looks()
        self.waiting = {}

    def wait(self, name):
        self.waiting[name] = self.looks.wait()

    @property
    def over(self):
        return [name for name, done in self.waiting.items() if done.done()]


def test_who_waits_is_told_once_all_was_looked_at_that_came_before():
    async def scenario():
        told = Told()
        told.looks.add("a")
        told.looks.add("b")
        told.wait("first")
        told.looks.add("c")
        told.wait("second")
        for over in ([], ["first"], ["first", "second"]):
            told.looks.take()
            told.looks.tell()
            assert told.over == over

    asyncio.run(scenario())


def test_one_look_serves_all_that_told_of_its_key_before_it_began():
    async def scenario():
        told = Told()
        told.looks.add("a")
        told.looks.add("a")
        told.wait("first")
        told.looks.take()
        told.looks.add("a")
        told.wait("second")
        told.looks.tell()
        assert told.over == ["first"]
        told.looks.take()
        told.looks.tell()
        assert told.over == ["first", "second"]
        assert not told.looks

    asyncio.run(scenario())


def test_a_look_that_failed_keeps_its_place():
    async def scenario():
        told = Told()
        told.looks.add("a")
        told.wait("first")
        told.looks.add("b")
        failed = told.looks.take()
        told.looks.add("a")
        told.wait("second")
        told.looks.put_back(*failed)
        assert told.looks.take()[0] == "a"
        told.looks.tell()
        assert told.over == ["first"]
        assert told.looks.take()[0] == "b"
        told.looks.tell()
        assert told.over == ["first", "second"]

    asyncio.run(scenario())


def test_nobody_waits_where_nothing_is_to_be_looked_at():
    async def scenario():
        told = Told()
        told.wait("first")
        told.looks.tell()
        assert told.over == ["first"]

    asyncio.run(scenario())
