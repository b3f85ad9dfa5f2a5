"""The durable list of ledgers: changes that fail, follow each other, or lose a race."""

import asyncio
import errno

import pytest
from at_once import AtOnce
from faulty_disk import FaultyDisk, failing

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import BadVersion, StorageFull
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger_metadata import LedgerInfo, LedgerList, ledgers_key
from managed_ledger.list_record import ListRecord
from managed_ledger.position import EARLIEST, LATEST
from managed_ledger.storage.backend import Versioned
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.room import NEXT_TO_NOTHING_BYTES
from managed_ledger.storage.memory import MemoryBackend

FULL = failing(errno.ENOSPC, ("write", "journal/"))
PLENTY = 1_000_000_000
CONFIG = ManagedLedgerConfig(max_entries_per_ledger=2, min_rollover_time_ms=0)


def stored(backend, name: str = "log") -> LedgerList:
    found = backend.metadata.get(ledgers_key(name))
    assert found is not None
    return LedgerList.decode(found.value, name)


def test_a_change_that_failed_is_forgotten_and_the_next_one_succeeds(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend = EmbeddedBackend(disk, clock)
        await backend.open()
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        await ledger.set_property("before", "x")
        disk.fault = FULL
        lost = [ledger.set_property("lost", "x"), ledger.set_property("lost too", "x")]
        outcomes = await asyncio.gather(*lost, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StorageFull] * 2
        assert not {"lost", "lost too"} & set(ledger.properties)
        disk.fault = lambda operation, name: None
        await asyncio.gather(ledger.set_property("after", "x"), ledger.set_property("last", "x"))
        assert {"before", "after", "last"} <= set(ledger.properties)
        assert not {"lost", "lost too"} & set(stored(backend).properties)
        await backend.close()

    run(scenario())


def test_a_ledger_that_a_full_disk_kept_from_rolling_over_rolls_over_later(run, clock):
    """Two writes fail together: the message that fills the ledger, and a later change of the list.
    The new list is built in the turn in which the message fails.
    """

    async def scenario():
        disk = FaultyDisk()
        backend = EmbeddedBackend(disk, clock)
        await backend.open()
        ledger = await ManagedLedgerFactory(backend, clock, CONFIG).open("log")
        await ledger.append_one(b"before")
        disk.fault = FULL
        filling = asyncio.ensure_future(ledger.append_one(b"refused"))
        await asyncio.sleep(0)
        lost = ledger.set_property("lost", "x")
        outcomes = await asyncio.gather(filling, lost, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StorageFull] * 2
        disk.fault = lambda operation, name: None
        await ledger.append_one(b"after")
        assert not ledger.closed
        assert "lost" not in stored(backend).properties
        await backend.close()

    run(scenario())


def test_ledgers_whose_data_is_gone_are_listed_no_longer_than_until_the_next_change(run, clock):
    async def scenario():
        backend = MemoryBackend()
        await backend.open()
        factory = ManagedLedgerFactory(backend, clock, CONFIG)
        ledger = await factory.open("log")
        for _ in range(5):
            await ledger.append_one(b"x")
        gone = [info.ledger_id for info in ledger.ledgers()[:2]]
        await ledger.trim()
        assert stored(backend).deleting == tuple(gone)  # until their data is gone
        assert stored(backend).ledgers[-1] == LedgerInfo(ledger.ledgers()[-1].ledger_id, 0, 0, None)
        await ledger.set_property("key", "value")
        assert stored(backend).deleting == ()
        await factory.close()
        again = ManagedLedgerFactory(backend, clock, CONFIG)
        ledger = await again.open("log")
        await ledger.set_property("key", "other")
        assert stored(backend).deleting == ()
        assert [info.ledger_id for info in stored(backend).ledgers] == [
            info.ledger_id for info in ledger.ledgers()
        ]

    run(scenario())


def test_a_writer_that_lost_sees_what_the_other_wrote_and_can_write_on_top(run):
    async def scenario():
        backend = MemoryBackend()
        await backend.open()
        first, second = (ListRecord(backend.metadata, "managed-ledgers/x") for _ in range(2))
        theirs = LedgerList((LedgerInfo(1, 0, 0, None),))
        ours = LedgerList((LedgerInfo(2, 0, 0, None),))
        await first.write(theirs)
        with pytest.raises(BadVersion):
            await second.write(ours)
        assert (second.durable, second.queued) == (theirs, theirs)
        await second.write(ours)
        assert first.durable == second.durable == ours

    run(scenario())


def test_a_change_that_is_made_before_anybody_heard_of_a_failure_does_not_rest_on_it(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend = EmbeddedBackend(disk, clock, executor=AtOnce())
        await backend.open()
        record = ListRecord(backend.metadata, "managed-ledgers/x")
        disk.fault = FULL
        other = backend.metadata.delete("other")
        other.add_done_callback(lambda _: again())  # its callback runs first
        lost = record.write(LedgerList(deleting=(1,)))
        made = asyncio.get_running_loop().create_future()

        def again() -> None:
            disk.fault = lambda operation, name: None
            assert not lost.done()
            assert record.queued == LedgerList()
            made.set_result(record.write(LedgerList(deleting=(2,))))

        for failed in (other, lost):
            with pytest.raises(StorageFull):
                await failed
        await (await made)
        assert record.durable == record.queued == LedgerList(deleting=(2,))
        await backend.close()

    run(scenario())


class Puts:
    """Metadata whose writes end when the test says so."""

    def __init__(self) -> None:
        self.stored: Versioned | None = None
        self.begun: list[tuple[bytes, int, asyncio.Future[int]]] = []

    def get(self, key: str) -> Versioned | None:
        return self.stored

    def put(self, key, value, version, makes_room, new_ledger_id, only_while):
        done = asyncio.get_running_loop().create_future()
        self.begun.append((value, version, done))
        return done

    def succeed(self, number: int) -> None:
        value, version, done = self.begun[number]
        self.stored = Versioned(value, version + 1)
        done.set_result(version + 1)

    def fail(self, number: int) -> None:
        self.begun[number][2].set_exception(StorageFull("no space left on device"))


@pytest.mark.parametrize("failing_ones", [(), (1,), (0, 1)])
def test_what_has_ended_is_under_way_no_more_and_the_others_are_waited_for(run, failing_ones):
    async def scenario():
        puts = Puts()
        record = ListRecord(puts, "managed-ledgers/x")
        changes = [record.write(LedgerList(deleting=(number,))) for number in (1, 2)]
        settled = asyncio.ensure_future(record.settled())
        for number in range(2):
            (puts.fail if number in failing_ones else puts.succeed)(number)
            await asyncio.wait([changes[number]])
            await asyncio.sleep(0)
            assert settled.done() == (number == 1)
        assert record._under_way == ()
        assert (changes[0].exception() is not None) == (0 in failing_ones)
        assert changes[1].exception() is None or failing_ones

    run(scenario())


def test_a_change_rests_on_the_last_one_that_has_not_failed_whether_or_not_that_was_heard(run):
    async def scenario():
        puts = Puts()
        record = ListRecord(puts, "managed-ledgers/x")
        lost = [record.write(LedgerList(deleting=(number,))) for number in (1, 2, 3)]
        puts.fail(1)
        puts.fail(2)
        made = record.write(LedgerList(deleting=(4,)))
        assert [version for _, version, _ in puts.begun] == [-1, 0, 1, 0]
        puts.succeed(0)
        puts.succeed(3)
        await made
        assert record.durable == record.queued == LedgerList(deleting=(4,))
        outcomes = await asyncio.gather(*lost, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), StorageFull, StorageFull]

    run(scenario())


def test_who_no_longer_waits_for_a_change_does_not_stop_it(run):
    async def scenario():
        backend = MemoryBackend()
        await backend.open()
        record = ListRecord(backend.metadata, "managed-ledgers/x")
        for value in (LedgerList(deleting=(1,)), LedgerList(deleting=(2,))):
            record.write(value).cancel()
        await record.write(LedgerList(deleting=(3,)))
        assert record.durable == record.queued == LedgerList(deleting=(3,))

    run(scenario())


def test_a_log_is_there_from_its_first_opening_and_its_cursors_from_theirs(run, clock):
    async def scenario():
        backend = MemoryBackend()
        await backend.open()
        factory = ManagedLedgerFactory(backend, clock, CONFIG)
        assert not factory.exists("a/x")
        assert factory.ledger_ids("a/x") == []
        ledger = await factory.open("a/x")
        await factory.open("a/y-z")
        await factory.open("b/x")
        assert factory.exists("a/x")
        assert factory.names() == ["a/x", "a/y-z", "b/x"]
        assert factory.names("a/") == ["a/x", "a/y-z"]
        assert factory.names(suffix="x") == ["a/x", "b/x"]
        assert not factory.has_cursor("a/x", "s")
        await ledger.open_cursor("s", EARLIEST)
        assert factory.has_cursor("a/x", "s")
        for _ in range(3):
            await ledger.append_one(b"x")
        assert factory.ledger_ids("a/x") == [info.ledger_id for info in ledger.ledgers()]
        assert len(factory.ledger_ids("a/x")) == 2
        await factory.delete_cursor("a/x", "s")
        assert not factory.has_cursor("a/x", "s")
        assert dict(ledger.cursors) == {}
        await ledger.open_cursor("t", EARLIEST)
        await ledger.close()
        await factory.delete_cursor("a/x", "t")
        assert not factory.has_cursor("a/x", "t")
        await factory.delete_all("a/")
        assert factory.names() == ["b/x"]

    run(scenario())


def test_a_list_that_was_made_from_one_that_found_no_room_finds_none_either(run, clock):
    """The second change would make room, but it must fail, too: its list counts the current ledger
    as closed and names a ledger that was never created. Later entries would be lost at the next
    opening.
    """

    async def scenario():
        disk, free = FaultyDisk(), [PLENTY]
        disk.free = lambda: free[0]
        backend = EmbeddedBackend(disk, clock)
        await backend.open()
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        await ledger.append_one(b"before")
        free[0] = NEXT_TO_NOTHING_BYTES // 2
        rolling = asyncio.ensure_future(ledger.roll_over())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(ledger._record.queued.ledgers) == 2  # the new list is in flight
        named = ledger.set_property("name", "value")
        outcomes = await asyncio.gather(rolling, named, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StorageFull] * 2
        free[0] = PLENTY
        await ledger.append_one(b"after")
        await ledger.set_property("name", "value")
        again = EmbeddedBackend(FaultyDisk(disk.contents()), clock)
        await again.open()
        found = await ManagedLedgerFactory(again, clock).open("log")
        run_ = await found.read(EARLIEST, LATEST, 10, 1000)
        assert run_ is not None and run_.entries == [b"before", b"after"]
        assert found.properties["name"] == "value"
        await again.close()
        await backend.close()

    run(scenario())
