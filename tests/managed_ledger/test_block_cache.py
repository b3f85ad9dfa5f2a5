"""The cache of blocks: its limit in bytes, and the eviction of blocks without readers."""

import asyncio

from bare_ledgers import make_ledger
from faulty_disk import FaultyDisk
from virtual_loop import run_virtually

from managed_ledger.storage.embedded.block_cache import (
    ENTRY_OVERHEAD_BYTES,
    IDLE_S,
    BlockCache,
    cost_of,
)
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.entry_columns import EntryColumns


def block(*sizes: int) -> EntryColumns:
    return EntryColumns(0, [bytes(size) for size in sizes])


def cached(cache: BlockCache, keys: range) -> list[int]:
    return [key for key in keys if cache.get((key, 0)) is not None]


def test_the_cache_is_limited_in_bytes_and_the_least_recently_used_go(run):
    async def scenario():
        cache = BlockCache(max_bytes=1000)
        for key in range(3):
            cache.add((key, 0), block(200))
        cache.get((0, 0))
        cache.add((3, 0), block(300, 50))
        assert cache.size_bytes <= 1000
        assert cached(cache, range(4)) == [0, 2, 3]
        cache.close()

    run(scenario())


def test_a_block_larger_than_the_cache_is_not_kept(run):
    async def scenario():
        cache = BlockCache(max_bytes=1000)
        cache.add((0, 0), block(2000))
        assert cached(cache, range(1)) == []
        assert cache.size_bytes == 0
        cache.close()

    run(scenario())


def test_a_block_that_two_have_read_counts_once_and_the_limit_may_be_reached(run):
    async def scenario():
        cache = BlockCache(max_bytes=cost_of(block(200, 50)) + cost_of(block(9)))
        for _ in range(5):
            cache.add((0, 0), block(200, 50))
        assert cache.size_bytes == 200 + 50 + 2 * ENTRY_OVERHEAD_BYTES
        cache.add((1, 0), block(9))
        assert cached(cache, range(2)) == [0, 1]
        assert cache.size_bytes == cache.max_bytes
        cache.close()

    run(scenario())


def test_how_many_ledgers_have_blocks_counts_new_and_old_ones(run):
    async def scenario():
        cache = BlockCache()
        for ledger_id in (0, 1):
            cache.add((ledger_id, 0), block(1))
            cache.add((ledger_id, 1), block(1))
        assert cache.ledgers() == 2
        cache._age()
        assert cache.get((0, 0)) is not None
        assert cache.ledgers() == 2
        cache.close()

    run(scenario())


def test_by_itself_a_block_goes_between_once_and_twice_the_idle_time_after_its_last_use():
    async def scenario() -> None:
        cache = BlockCache()
        for _ in range(2):  # after an idle time the cache behaves as new
            cache.add((0, 0), block(200))
            cache.add((1, 0), block(300))
            await asyncio.sleep(0.9 * IDLE_S)
            assert cached(cache, range(1)) == [0]
            await asyncio.sleep(0.9 * IDLE_S)
            assert cached(cache, range(1)) == [0]
            await asyncio.sleep(0.3 * IDLE_S)
            assert cached(cache, range(2)) == [0]
            assert cache.size_bytes == cost_of(block(200))
            await asyncio.sleep(2 * IDLE_S)
            assert cache.size_bytes == 0
            assert cache._timer is None
        cache.add((0, 0), block(200))
        cache.close()
        await asyncio.sleep(10 * IDLE_S)
        assert cache.size_bytes != 0, "after its end nothing happens by time"
        BlockCache().close()

    run_virtually(scenario())


def test_what_nobody_asks_for_goes_after_a_while(run):
    async def scenario():
        cache = BlockCache()
        cache.add((0, 0), block(200))
        cache.add((1, 0), block(200))
        cache._age()
        assert cached(cache, range(1)) == [0]
        cache._age()
        assert cached(cache, range(2)) == [0]
        cache._age()
        cache._age()
        assert cache.size_bytes == 0
        cache.close()

    run(scenario())


def test_entries_larger_than_the_cache_are_read_one_after_the_other(run, clock):
    async def scenario():
        disk = FaultyDisk()
        backend = EmbeddedBackend(disk, clock)
        await backend.open()
        ledger = await make_ledger(backend)
        entries = [bytes([number]) * 200_000 for number in range(5)]
        done = asyncio.get_running_loop().create_future()
        backend.append(ledger, 0, entries, [1] * 5, done.set_result)
        await done
        await backend.close()
        backend = EmbeddedBackend(FaultyDisk(disk.contents()), clock)
        backend._reader._cache.max_bytes = 10
        await backend.open()
        found = []
        for first in range(5):
            found += (await backend.read(ledger, first, 4, 100, 1)).entries
        assert found == entries
        assert backend._reader._cache.size_bytes == 0
        await backend.close()

    run(scenario())


def test_many_readers_read_less_far_ahead(run, clock):
    async def scenario():
        backend = EmbeddedBackend(FaultyDisk(), clock)
        alone = backend._reader._read_ahead()
        for ledger_id in range(1000):
            backend._reader._cache.add((ledger_id, 0), block(100))
        assert backend._reader._read_ahead() * 1000 < backend._reader._cache.max_bytes
        assert alone == 8 * 64 * 1024
        backend._reader.close()

    run(scenario())
