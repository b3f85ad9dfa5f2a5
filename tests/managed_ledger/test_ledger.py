"""Managed ledgers: append, read, roll over, trim, close, reopen."""

import asyncio

import pytest
from bare_ledgers import read_all

from managed_ledger.errors import LedgerClosed
from managed_ledger.ledger_metadata import LedgerList, ledgers_key
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.trim import Retention


async def fill(ledger, count: int, prefix: str = "") -> list[Position]:
    payloads = [f"{prefix}{n}".encode() for n in range(count)]
    return await asyncio.gather(*map(ledger.append_one, payloads))


def test_positions_count_up_and_last_confirmed_has_moved_when_done_runs(start, run):
    async def scenario():
        async with start() as factory:
            ledger = await factory.open("log")
            assert ledger.last_confirmed.entry_id == -1
            seen = []
            finished = asyncio.Event()

            def done(first, error):
                seen.append((first, error, ledger.last_confirmed))
                if len(seen) == 2:
                    finished.set()

            ledger.append([b"a", b"b"], [1, 1], done)
            ledger.append([b"c"], [1], done)
            await finished.wait()
            id_ = ledger.last_confirmed.ledger_id
            assert seen == [((id_, 0), None, (id_, 1)), ((id_, 2), None, (id_, 2))]

    run(scenario())


def test_a_full_ledger_is_followed_by_the_next_in_order(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=5) as factory:
            ledger = await factory.open("log")
            positions = await fill(ledger, 23)
            assert positions == sorted(positions)
            assert [info.entries for info in ledger.ledgers()] == [5, 5, 5, 5, 3]
            assert await read_all(ledger) == [b"%d" % n for n in range(23)]

    run(scenario())


def test_entries_of_one_append_stay_in_one_ledger(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=5) as factory:
            ledger = await factory.open("log")
            done = asyncio.get_running_loop().create_future()
            ledger.append([b"x"] * 7, [1] * 7, lambda first, error: done.set_result(first))
            first = await done
            assert ledger.last_confirmed == (first.ledger_id, 6)

    run(scenario())


def test_a_ledger_is_not_rolled_before_its_minimum_age(start, run, clock):
    async def scenario():
        async with start(max_entries_per_ledger=5, min_rollover_time_ms=60_000) as factory:
            ledger = await factory.open("log")
            await fill(ledger, 20)
            assert len(ledger.ledgers()) == 1
            clock.ms += 60_000
            await fill(ledger, 1)
            await fill(ledger, 1)
            assert [info.entries for info in ledger.ledgers()] == [21, 1]

    run(scenario())


def test_a_ledger_is_rolled_at_its_maximum_age(start, run, clock):
    async def scenario():
        async with start(max_rollover_time_ms=1000) as factory:
            ledger = await factory.open("log")
            ledger.roll_over_when_old()
            clock.ms += 1000
            ledger.roll_over_when_old()
            assert len(ledger.ledgers()) == 1  # it is empty
            await fill(ledger, 1)
            ledger.roll_over_when_old()
            await fill(ledger, 1)
            assert [info.entries for info in ledger.ledgers()] == [1, 1]

    run(scenario())


def test_opening_again_goes_on_behind_what_was_there(start, run):
    async def scenario():
        async with start() as factory:
            before = await fill(await factory.open("log"), 3, "a")
        async with start() as factory:
            ledger = await factory.open("log")
            assert ledger.last_confirmed == before[-1]
            assert ledger.next_position(before[-1]).entry_id == 0
            after = await fill(ledger, 2, "b")
            assert after[0].ledger_id > before[-1].ledger_id
            assert await read_all(ledger) == [b"a0", b"a1", b"a2", b"b0", b"b1"]

    run(scenario())


def test_reopening_leaves_no_trail_of_empty_ledgers(start, run):
    async def scenario():
        for _ in range(4):
            async with start() as factory:
                ledger = await factory.open("log")
                assert len(ledger.ledgers()) == 1

    run(scenario())


def test_opening_again_and_again_lengthens_no_list(start, run):
    async def scenario():
        storage = start()
        async with storage as factory:
            for _ in range(5):
                await (await factory.open("orders")).close()
            stored = storage.backend.metadata.get(ledgers_key("orders"))
            found = LedgerList.decode(stored.value, "orders")
            assert (len(found.ledgers), len(found.deleting)) == (1, 1)
            assert storage.backend.ledger_ids() == [found.ledgers[0].ledger_id]

    run(scenario())


def test_reads_stop_at_the_limit_that_was_handed_in(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=4) as factory:
            ledger = await factory.open("log")
            positions = await fill(ledger, 10)
            assert await read_all(ledger, up_to=positions[6]) == [b"%d" % n for n in range(7)]
            assert not ledger.has_entries(positions[7], positions[6])
            assert ledger.has_entries(positions[6], positions[6])
            assert await ledger.read(positions[9].after, LATEST, 1, 1) is None
            assert ledger.read_cached(positions[9].after, LATEST, 1, 1) is None

    run(scenario())


def test_trimming_releases_what_all_durable_cursors_have_consumed(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=5) as factory:
            ledger = await factory.open("log")
            slow = await ledger.open_cursor("slow", EARLIEST)
            fast = await ledger.open_cursor("fast", EARLIEST)
            tail = ledger.new_non_durable_cursor("reader", EARLIEST)
            positions = await fill(ledger, 17)
            gone: list[int] = []
            ledger.trimmer.on_trimmed += (gone.append,)
            fast.mark_delete(positions[-1])
            await ledger.trim()
            assert gone == []
            slow.mark_delete(positions[9])
            await ledger.trim()
            assert gone == [positions[0].ledger_id, positions[5].ledger_id]
            assert ledger.first_position == positions[10]
            assert tail.mark_delete_position == positions[10].before
            assert slow.backlog(ledger.last_confirmed) == 7
            assert await read_all(ledger) == [b"%d" % n for n in range(10, 17)]

    run(scenario())


def test_trimmed_ledgers_stay_trimmed_after_a_restart(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=5) as factory:
            ledger = await factory.open("log")
            cursor = await ledger.open_cursor("sub", EARLIEST)
            positions = await fill(ledger, 12)
            cursor.mark_delete(positions[10])
            await ledger.trim()
        async with start() as factory:
            ledger = await factory.open("log")
            assert await read_all(ledger) == [b"10", b"11"]
            assert ledger.cursors["sub"].backlog(ledger.last_confirmed) == 1

    run(scenario())


def test_retention_keeps_consumed_ledgers_until_they_expire(start, run, clock):
    async def scenario():
        keep = Retention(time_ms=1000, size_bytes=-1)
        async with start(max_entries_per_ledger=5, retention=keep) as factory:
            ledger = await factory.open("log")
            await fill(ledger, 12)
            await ledger.trim()
            assert len(ledger.ledgers()) == 3
            clock.ms += 1000
            await ledger.trim()
            assert len(ledger.ledgers()) == 1

    run(scenario())


def test_a_cursor_whose_ledger_was_trimmed_still_moves_on(start, run):
    """Its mark-delete position must not stay in a deleted ledger."""

    async def scenario():
        async with start(max_entries_per_ledger=5) as factory:
            ledger = await factory.open("log")
            positions = await fill(ledger, 7)
            cursor = await ledger.open_cursor("sub", positions[4])
            await ledger.trim()
            assert cursor.delete(*positions[6])
            assert cursor.delete(*positions[5])
            assert cursor.mark_delete_position == positions[6]
            assert cursor.backlog(ledger.last_confirmed) == 0

    run(scenario())


def test_properties_are_durable_and_ordered_before_later_appends(start, run):
    async def scenario():
        async with start() as factory:
            ledger = await factory.open("log")
            known = asyncio.get_running_loop().create_future()
            written = ledger.set_property("transactions", "since 0:0")
            ledger.append([b"a"], [1], lambda *_: known.set_result(dict(ledger.properties)))
            await written
            assert (await known)["transactions"] == "since 0:0"
            await ledger.update_properties({"other": "x", "absent": None})
        async with start() as factory:
            ledger = await factory.open("log")
            assert ledger.properties["transactions"] == "since 0:0"
            assert ledger.properties["other"] == "x"
            await ledger.update_properties({"other": None})
            assert "other" not in ledger.properties

    run(scenario())


def test_when_it_was_made_is_kept(start, run):
    async def scenario():
        async with start() as factory:
            created_at_ms = (await factory.open("log")).created_at_ms
        async with start() as factory:
            assert created_at_ms == (await factory.open("log")).created_at_ms > 0

    run(scenario())


def test_a_property_set_during_a_rollover_survives_it(start, run):
    async def scenario():
        async with start() as factory:
            ledger = await factory.open("log")
            await fill(ledger, 3)
            rolling = asyncio.ensure_future(ledger.roll_over())
            for n in range(20):
                await asyncio.sleep(0)
                await ledger.set_property(str(n), "x")
            await rolling
            assert {str(n) for n in range(20)} <= set(ledger.properties)
            assert [info.entries for info in ledger.ledgers()] == [3, 0]

    run(scenario())


def test_concurrent_opens_share_one_managed_ledger(start, run):
    async def scenario():
        async with start() as factory:
            first, second = await asyncio.gather(factory.open("log"), factory.open("log"))
            assert first is second
            assert await factory.open("log") is first

    run(scenario())


def test_a_deleted_managed_ledger_starts_anew_without_its_cursors(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=2) as factory:
            ledger = await factory.open("a/log")
            await ledger.open_cursor("sub", EARLIEST)
            await fill(ledger, 5)
            await factory.open("a/other")
            assert factory.names("a/") == ["a/log", "a/other"]
            await asyncio.gather(factory.delete("a/log"), factory.delete("a/log"))
            assert not factory.exists("a/log")
            assert factory.names("a/") == ["a/other"]
            with pytest.raises(LedgerClosed):
                await ledger.append_one(b"late")
            anew = await factory.open("a/log")
            assert anew.last_confirmed.entry_id == -1
            assert dict(anew.cursors) == {}
            assert await read_all(anew) == []
            await factory.delete("never there")

    run(scenario())


def test_a_deletion_cut_short_is_finished_by_the_next_open(make_backend, run, clock, start):
    from managed_ledger.ledger_metadata import LedgerList, ledgers_key

    async def scenario():
        async with start() as factory:
            ledger = await factory.open("log")
            await ledger.open_cursor("sub", EARLIEST)
            await fill(ledger, 3)
            ids = tuple(info.ledger_id for info in ledger.ledgers())
        backend = make_backend()
        await backend.open()
        tombstone = LedgerList(deleting=ids, deleted=True)
        await backend.metadata.put(ledgers_key("log"), tombstone.encode())
        await backend.close()
        async with start() as factory:
            assert not factory.exists("log")
            ledger = await factory.open("log")
            assert factory.exists("log")
            assert dict(ledger.cursors) == {}
            assert await read_all(ledger) == []

    run(scenario())


def test_a_second_writer_fences_the_first(make_backend, run, clock):
    from managed_ledger.factory import ManagedLedgerFactory

    async def scenario():
        backend = make_backend()
        await backend.open()
        zombie = await ManagedLedgerFactory(backend, clock).open("log")
        await zombie.append_one(b"a")
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        with pytest.raises(LedgerClosed):
            await zombie.append_one(b"zombie")
        assert await read_all(ledger) == [b"a"]
        await factory.close()
        await backend.close()

    run(scenario())


def test_a_zombie_cannot_write_the_list_it_lost(make_backend, run, clock):
    from managed_ledger.errors import BadVersion
    from managed_ledger.factory import ManagedLedgerFactory

    async def scenario():
        backend = make_backend()
        await backend.open()
        zombie = await ManagedLedgerFactory(backend, clock).open("log")
        await zombie.append_one(b"a")
        await ManagedLedgerFactory(backend, clock).open("log")
        with pytest.raises(BadVersion):
            await zombie.roll_over()
        assert zombie.closed
        with pytest.raises(LedgerClosed, match="open it again"):
            await zombie.append_one(b"zombie")
        await backend.close()

    run(scenario())


def test_closing_lets_queued_appends_become_durable(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=3) as factory:
            ledger = await factory.open("log")
            appends = [asyncio.ensure_future(ledger.append_one(b"%d" % n)) for n in range(10)]
            await asyncio.sleep(0)
            await ledger.close()
            await asyncio.gather(*appends)
            with pytest.raises(LedgerClosed):
                await ledger.append_one(b"late")
            again = await factory.open("log")
            assert await read_all(again) == [b"%d" % n for n in range(10)]

    run(scenario())


def test_a_cancelled_append_is_made_all_the_same(start, run):
    async def scenario():
        async with start() as factory:
            ledger = await factory.open("log")
            append = asyncio.ensure_future(ledger.append_one(b"a"))
            await asyncio.sleep(0)
            append.cancel()
            await ledger.append_one(b"b")
            assert await read_all(ledger) == [b"a", b"b"]

    run(scenario())


def test_dirty_cursors_are_written_and_old_ledgers_trimmed_by_the_factory(make_backend, run, clock):
    from managed_ledger.config import ManagedLedgerConfig
    from managed_ledger.factory import ManagedLedgerFactory

    async def scenario():
        backend = make_backend()
        await backend.open()
        config = ManagedLedgerConfig(
            max_entries_per_ledger=2, min_rollover_time_ms=0, cursor_flush_interval_ms=1
        )
        factory = ManagedLedgerFactory(backend, clock, config, 1)
        ledger = await factory.open("log")
        cursor = await ledger.open_cursor("sub", EARLIEST)
        positions = await fill(ledger, 5)
        trimmed = asyncio.Event()
        ledger.trimmer.on_trimmed += (lambda _: trimmed.set(),)
        cursor.mark_delete(positions[3])
        await trimmed.wait()
        await cursor.flush()
        await factory.close()
        await backend.close()

    run(scenario())
