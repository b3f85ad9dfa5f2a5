"""Apache's formats in the mirror: values in ledgers, takeovers, unreadable values."""

import asyncio

import pytest
from short_names import ShortNames
from simulated_storage import life, make_backend, process, run  # noqa: F401
from storage_fixtures import clock  # noqa: F401

from managed_ledger.ack_set import AckSet
from managed_ledger.errors import BadVersion, CorruptStorage
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger_metadata import CursorRecord, LedgerList, cursor_key, ledgers_key
from managed_ledger.position import EARLIEST
from managed_ledger.storage.bookkeeper.formats import cursor_record
from managed_ledger.storage.bookkeeper.metadata_record import LedgerState

MAX_RANGES = 20
HOLES = MAX_RANGES + 10
CURSOR = cursor_key("log", "sub")
NODE = ShortNames().path_of(CURSOR)
LISTS_NODE = ShortNames().path_of(ledgers_key("log"))
assert NODE is not None
assert LISTS_NODE is not None


class Broker:
    """A backend and a factory over it."""

    def __init__(self, backend, time):
        self.backend = backend
        self._clock = time

    async def __aenter__(self):
        await self.backend.open()
        self.factory = ManagedLedgerFactory(self.backend, self._clock)
        return self

    async def __aexit__(self, *exc_info):
        await self.factory.close()
        await self.backend.close()

    async def fill(self, entries):
        ledger = await self.factory.open("log")
        cursor = await ledger.open_cursor("sub", EARLIEST)
        done = asyncio.get_running_loop().create_future()
        appended = [b"x"] * entries
        ledger.append(appended, [1] * entries, lambda first, error: done.set_result(first))
        return cursor, (await done).ledger_id

    async def node(self, path):
        return (await self.backend._zookeeper.get(path)).value

    async def cursors_ledger(self):
        return self.backend._metadata._formats.decoded(CURSOR, await self.node(NODE)).ledger_id

    async def exists(self, ledger_id):
        try:
            await self.node(self.backend._store.path(ledger_id))
        except Exception:
            return False
        return True


@pytest.fixture(autouse=True)
def few_ranges_are_many(monkeypatch):
    monkeypatch.setattr(cursor_record, "MAX_RANGES", MAX_RANGES)


@pytest.fixture
def broker(make_backend, clock):  # noqa: F811
    return lambda: Broker(make_backend(), clock)


def acknowledge_every_other(cursor, ledger_id, entries):
    for entry_id in range(1, entries, 2):
        cursor.delete(ledger_id, entry_id)


async def with_large_cursor(broker):
    cursor, ledger_id = await broker.fill(2 * HOLES)
    acknowledge_every_other(cursor, ledger_id, 2 * HOLES)
    await cursor.flush()
    return cursor, ledger_id


def test_a_large_cursor_outlives_its_broker_and_moves_back_when_it_is_small(broker, run):  # noqa: F811
    async def scenario():
        async with broker() as second:
            first = broker()
            await first.__aenter__()
            await with_large_cursor(first)
            cursors_ledger = await first.cursors_ledger()
            assert cursors_ledger >= 0
            assert len(await first.node(NODE)) < 50
            first.backend.crash()
            log = await second.factory.open("log")
            cursor = log.cursors["sub"]
            assert cursor.unacked_ranges_count == HOLES
            cursor.mark_delete(log.last_confirmed)
            await cursor.flush()
            assert await second.cursors_ledger() == -1
            await second.backend.metadata.delete("anything")  # it runs after the clean-up
            await second.backend.metadata.delete("anything")
            assert not await second.exists(cursors_ledger)

    run(scenario())


def test_the_writer_of_a_large_cursor_is_fenced_by_the_process_that_takes_it_over(broker, run):  # noqa: F811
    async def scenario():
        async with broker() as second:
            first = broker()
            await first.__aenter__()
            cursor, ledger_id = await with_large_cursor(first)
            await second.factory.open("log")
            cursor.delete(ledger_id, 2)
            with pytest.raises(Exception, match=r"fenced|changed"):
                await cursor.flush()
            first.backend.crash()

    run(scenario())


def acknowledge_a_part(cursor, ledger_id, entry_id):
    cursor.delete_batch_indexes((ledger_id, entry_id), 0b101, 3)


def test_a_part_of_a_batch_is_written_to_a_ledger_and_all_that_follows_to_the_same(broker, run):  # noqa: F811
    async def scenario():
        async with broker() as one:
            cursor, ledger_id = await one.fill(10)
            found = []
            for entry_id in range(3, 6):
                acknowledge_a_part(cursor, ledger_id, entry_id)
                await cursor.flush()
                found.append(await one.cursors_ledger())
                cursor.delete(ledger_id, entry_id)
                await cursor.flush()
                found.append(await one.cursors_ledger())
            assert found[0] >= 0
            assert set(found) == {found[0]}

    run(scenario())


def test_parts_of_batches_outlive_a_broker_that_is_killed(broker, run):  # noqa: F811
    async def scenario():
        async with broker() as second:
            first = broker()
            await first.__aenter__()
            cursor, ledger_id = await first.fill(10)
            acknowledge_a_part(cursor, ledger_id, 3)
            await cursor.flush()
            first.backend.crash()
            log = await second.factory.open("log")
            assert log.cursors["sub"].partial_batches == {(ledger_id, 3): 0b101}

    run(scenario())


def test_the_ledger_of_a_cursor_is_closed_with_its_log(broker, run):  # noqa: F811
    """The log's next owner has nothing to recover, and this broker keeps nothing of the log."""

    async def scenario():
        async with broker() as one:
            cursor, ledger_id = await one.fill(10)
            acknowledge_a_part(cursor, ledger_id, 3)
            await (await one.factory.open("log")).close()
            stored = await one.backend._store.get(await one.cursors_ledger())
            assert stored.metadata.state is LedgerState.CLOSED
            assert not one.backend._values._writers
            log = await one.factory.open("log")
            cursor = log.cursors["sub"]
            assert cursor.partial_batches == {(ledger_id, 3): 0b101}
            cursor.mark_delete(log.last_confirmed)
            await cursor.flush()
            assert await one.cursors_ledger() == -1

    run(scenario())


def test_a_log_is_closed_when_the_cursors_that_are_being_written_are(broker, run):  # noqa: F811
    """The log's next owner must find these cursors, and they must not change afterwards."""

    async def scenario():
        async with broker() as one:
            cursor, ledger_id = await one.fill(10)
            acknowledge_a_part(cursor, ledger_id, 3)
            log = await one.factory.open("log")
            writing = asyncio.ensure_future(log.flush_cursors())
            await asyncio.sleep(0)
            await log.close()
            assert await one.cursors_ledger() >= 0
            await writing

    run(scenario())


def test_an_own_changes_echo_does_not_shrink_a_large_cursor(broker, run):  # noqa: F811
    async def scenario():
        async with broker() as one:
            cursor, ledger_id = await with_large_cursor(one)
            metadata = one.backend.metadata
            for entry_id in (2, 6, 10):
                cursor.delete(ledger_id, entry_id)
                await cursor.flush()
                await metadata.put("later", b"")  # events arrive in order
                await asyncio.sleep(1.0)
                record = CursorRecord.decode(metadata.get(CURSOR).value, CURSOR)
                assert AckSet.decode(record.acked[ledger_id]).range_count() > HOLES // 2
            assert await one.cursors_ledger() >= 0

    run(scenario())


def test_a_large_cursors_ledger_goes_with_the_cursor(broker, run):  # noqa: F811
    async def scenario():
        async with broker() as one:
            await with_large_cursor(one)
            cursors_ledger = await one.cursors_ledger()
            assert await one.exists(cursors_ledger)
            await (await one.factory.open("log")).delete_cursor("sub")
            await one.backend.metadata.delete("anything")
            await one.backend.metadata.delete("anything")
            assert not await one.exists(cursors_ledger)

    run(scenario())


def test_a_topic_that_comes_back_gets_a_larger_ledger_number(broker, run):  # noqa: F811
    """Each broker takes numbers in advance; positions must still be in the order of the ledgers."""

    async def scenario():
        async with broker() as second, broker() as first:
            smaller = second.backend.new_ledger_id()
            _, ledger_id = await first.fill(3)
            assert ledger_id > smaller
            first.backend.crash()
            log = await second.factory.open("log")
            assert log.ledgers()[0].ledger_id == ledger_id
            assert log.ledgers()[-1].ledger_id > ledger_id
            assert log.cursors["sub"].backlog(log.last_confirmed) == 3

    run(scenario())


def test_a_cursor_may_be_written_before_its_list(broker, run):  # noqa: F811
    """`pybroker move` copies keys in their order."""

    async def scenario():
        async with broker() as one:
            metadata = one.backend.metadata
            record = CursorRecord(EARLIEST, {}, {}, {}).encode()
            found = LedgerList(properties={"a": "b"}).encode()
            puts = [metadata.put(CURSOR, record), metadata.put(ledgers_key("log"), found)]
            assert await asyncio.gather(*puts) == [0, 1]
            assert metadata.get(ledgers_key("log")) == (found, 1)
            with pytest.raises(BadVersion):
                await metadata.put(ledgers_key("log"), found, -1)
        async with broker() as again:
            log = await again.factory.open("log")
            assert (log.properties["a"], list(log.cursors)) == ("b", ["sub"])

    run(scenario())


def test_what_cannot_be_read_stops_its_own_topic_only_and_can_be_deleted(broker, run):  # noqa: F811
    async def scenario():
        async with broker() as one, broker() as other:
            await one.fill(1)
            await one.factory.close()
            zstd = b"\x47\x78\0\0\0\4\x08\x03\x10\x05xxxxx"
            await other.backend._zookeeper.set(LISTS_NODE, zstd)
            again = ManagedLedgerFactory(other.backend, other._clock)
            with pytest.raises(CorruptStorage, match="ZSTD"):
                await again.open("log")
            assert (await again.open("other")).name == "other"
            await other.backend._zookeeper.set(LISTS_NODE, b"")
            assert (await again.open("log")).cursors["sub"]
            await again.close()

    run(scenario())


def test_a_change_based_on_what_another_broker_has_changed_is_refused(broker, run):  # noqa: F811
    async def scenario():
        async with broker() as one, broker() as other:
            await one.fill(1)
            key = ledgers_key("log")
            found = other.backend.metadata
            await found.refresh(key)
            seen = found.get(key)
            value = LedgerList.decode(seen.value, key)
            await (await one.factory.open("log")).set_property("a", "b")
            with pytest.raises(BadVersion):
                await found.put(key, value.encode(), seen.version)

    run(scenario())
