"""The wall clock is set a year ahead and back: rollover and retention use the elapsed time."""

from dataclasses import dataclass

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.memory import MemoryBackend
from managed_ledger.trim import Retention

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


@dataclass
class SetClock:
    wall_ms: int = 2_000_000_000_000
    passed_ms: int = 0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_s(self) -> float:
        return self.passed_ms / 1000

    def pass_ms(self, ms: int) -> None:
        self.wall_ms += ms
        self.passed_ms += ms


class World:
    """A log with ten entries per ledger; consumed ledgers stay for a day."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.backend = MemoryBackend()

    async def start(self) -> None:
        config = ManagedLedgerConfig(
            max_entries_per_ledger=10,
            min_rollover_time_ms=600_000,
            retention=Retention(time_ms=24 * HOUR_MS, size_bytes=-1),
        )
        self.factory = ManagedLedgerFactory(self.backend, self.clock, config)
        self.ledger = await self.factory.open("log")
        self.cursor = await self.ledger.open_cursor("reader")

    async def restart(self) -> None:
        await self.factory.close()
        await self.start()

    async def fill_a_ledger(self) -> int:
        """Append and consume a ledger's entries; returns the number of ledgers afterwards."""
        for _ in range(10):
            position = await self.ledger.append_one(b"x")
        self.cursor.mark_delete(position)
        await self.ledger.roll_over()
        return await self.kept()

    async def kept(self) -> int:
        await self.ledger.trim()
        return sum(info.closed_at_ms is not None for info in self.ledger.ledgers())


@pytest.mark.parametrize("jump_ms", [-YEAR_MS, YEAR_MS])
def test_ledgers_roll_over_and_go_at_their_time_whatever_the_clock_is_set_to(run, jump_ms):
    async def scenario():
        world = World()
        await world.start()
        world.clock.wall_ms += jump_ms
        for _ in range(72):  # hours
            for _ in range(10):
                position = await world.ledger.append_one(b"x")
            world.cursor.mark_delete(position)
            world.clock.pass_ms(HOUR_MS)
            world.ledger.roll_over_when_old()
            await world.ledger.append_one(b"last of the hour")
        assert 20 <= await world.kept() <= 26
        await world.factory.close()

    run(scenario())


@pytest.mark.parametrize("jump_ms", [-YEAR_MS, YEAR_MS])
def test_a_jump_and_its_way_back_delete_nothing_early_and_keep_nothing_for_ever(run, jump_ms):
    async def scenario():
        world = World()
        await world.start()
        assert await world.fill_a_ledger() == 1
        world.clock.wall_ms += jump_ms
        assert await world.fill_a_ledger() == 2
        world.clock.pass_ms(23 * HOUR_MS)
        assert await world.kept() == 2
        world.clock.wall_ms -= jump_ms
        assert await world.kept() == 2
        world.clock.pass_ms(HOUR_MS)
        assert await world.kept() == 0
        await world.factory.close()

    run(scenario())


def test_a_ledger_closed_in_the_future_goes_one_retention_time_after_the_start(run):
    async def scenario():
        world = World()
        world.clock.wall_ms += YEAR_MS
        await world.start()
        assert await world.fill_a_ledger() == 1
        world.clock.wall_ms -= YEAR_MS
        await world.restart()
        world.clock.pass_ms(20 * HOUR_MS)
        await world.restart()  # a restart does not reset the age
        assert await world.kept() == 1
        world.clock.pass_ms(4 * HOUR_MS)
        assert await world.kept() == 0
        await world.factory.close()

    run(scenario())


def test_a_ledger_closed_while_the_clock_was_put_back_is_no_older_after_a_restart(run):
    async def scenario():
        world = World()
        await world.start()
        world.clock.wall_ms -= YEAR_MS
        assert await world.fill_a_ledger() == 1
        world.clock.wall_ms += YEAR_MS
        await world.restart()
        assert await world.kept() == 1
        world.clock.pass_ms(24 * HOUR_MS)
        assert await world.kept() == 0
        await world.factory.close()

    run(scenario())


def test_a_clock_that_is_put_back_while_a_log_opens_keeps_nothing_longer(run):
    async def scenario():
        world = World()
        await world.start()
        assert await world.fill_a_ledger() == 1
        await world.factory.close()
        written = world.backend.metadata.put

        def put_back(*args, **options):
            world.clock.wall_ms -= YEAR_MS
            world.backend.metadata.put = written
            return written(*args, **options)

        world.backend.metadata.put = put_back
        await world.start()
        world.clock.pass_ms(24 * HOUR_MS)
        assert await world.kept() == 0
        await world.factory.close()

    run(scenario())
