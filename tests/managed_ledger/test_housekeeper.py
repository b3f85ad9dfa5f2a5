"""The times of visits; idle managed ledgers are not visited."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from virtual_loop import LoopClock, run_virtually

from managed_ledger import housekeeper as housekeeper_module
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.housekeeper import VISITS_A_TURN, Housekeeper
from managed_ledger.ledger import ManagedLedger
from managed_ledger.storage.memory import MemoryBackend
from managed_ledger.trim import Retention


def visited(delays_s: list[float], cancelled: tuple[int, ...] = ()) -> list[tuple[int, float]]:
    """The visits, and the second of each."""
    seen: list[tuple[int, float]] = []

    async def scenario() -> None:
        loop, housekeeper = asyncio.get_running_loop(), Housekeeper()
        housekeeper.start()

        def note(number: int) -> Callable[[], None]:
            return lambda: seen.append((number, round(loop.time(), 3)))

        visits = [housekeeper.visit_in(at, note(n)) for n, at in enumerate(delays_s)]
        for number in cancelled:
            visits[number].cancel()
        await asyncio.sleep(max(delays_s) + 1)
        assert len(housekeeper) == 0
        housekeeper.close()

    run_virtually(scenario())
    return seen


def test_visits_come_when_they_are_due_those_at_once_in_the_order_they_were_asked_for() -> None:
    assert visited([5, 1, 3, 1]) == [(1, 1), (3, 1), (2, 3), (0, 5)]


def test_a_cancelled_visit_does_not_come() -> None:
    assert visited([1, 2, 3], cancelled=(0, 2)) == [(1, 2)]


def test_many_that_are_due_together_let_others_in_between() -> None:
    async def scenario() -> None:
        housekeeper, seen = Housekeeper(), list[str]()
        housekeeper.start()

        def other() -> None:
            seen.append("other")
            if len(seen) < 200:
                asyncio.get_running_loop().call_soon(other)

        housekeeper.visit_in(1, other)
        for _ in range(10 * VISITS_A_TURN):
            housekeeper.visit_in(1, lambda: seen.append("visit"))
        await asyncio.sleep(2)
        assert seen.count("other") >= 8
        housekeeper.close()

    run_virtually(scenario())


def test_a_failing_visit_and_a_repeated_one_keep_no_other_from_its_visit() -> None:
    async def scenario() -> None:
        housekeeper, seen = Housekeeper(), list[str]()
        housekeeper.start()

        def again() -> None:
            seen.append("again")
            if len(seen) < 4:
                housekeeper.visit_in(0, again)

        housekeeper.visit_in(1, lambda: 1 / 0)
        housekeeper.visit_in(1, again)
        await asyncio.sleep(2)
        assert seen == ["again"] * 4
        housekeeper.visit_in(5, lambda: seen.append("late"))
        housekeeper.close()
        await asyncio.sleep(10)
        assert "late" not in seen

    run_virtually(scenario())


def test_cancelled_visits_do_not_pile_up() -> None:
    async def scenario() -> None:
        housekeeper = Housekeeper()
        housekeeper.start()
        for _ in range(10_000):
            housekeeper.visit_in(3600, lambda: None).cancel()
        assert len(housekeeper) == 0
        assert len(housekeeper._due) < 3000
        housekeeper.close()

    run_virtually(scenario())


def test_how_many_are_to_come_leaves_out_the_cancelled_and_the_past() -> None:
    async def scenario() -> None:
        housekeeper = Housekeeper()
        housekeeper.start()
        first, second, _ = (housekeeper.visit_in(at, lambda: None) for at in (1, 2, 3))
        assert len(housekeeper) == 3
        second.cancel()
        second.cancel()
        assert len(housekeeper) == 2
        await asyncio.sleep(1.5)
        first.cancel()  # too late
        assert len(housekeeper) == 1
        await asyncio.sleep(1)
        assert len(housekeeper) == 1
        await asyncio.sleep(1)
        assert len(housekeeper) == 0
        housekeeper.close()

    run_virtually(scenario())


def test_a_visit_that_is_due_earlier_than_all_others_comes_first() -> None:
    async def scenario() -> None:
        loop, housekeeper, seen = asyncio.get_running_loop(), Housekeeper(), list[float]()
        housekeeper.start()

        def note() -> None:
            seen.append(round(loop.time(), 3))

        def note_and_ask() -> None:
            note()
            housekeeper.visit_in(1, note)
            housekeeper.visit_in(0.5, note)

        for delay_s in (10, 20, 5, 7):
            housekeeper.visit_in(delay_s, note_and_ask if delay_s == 5 else note)
        await asyncio.sleep(30)
        assert seen == [5, 5.5, 6, 7, 10, 20]
        housekeeper.visit_in(1, note)
        await asyncio.sleep(2)
        assert seen[6:] == [31]
        housekeeper.close()
        housekeeper.close()

    run_virtually(scenario())


def test_only_some_visits_come_in_one_turn_of_the_loop() -> None:
    async def scenario() -> None:
        loop, housekeeper, seen = asyncio.get_running_loop(), Housekeeper(), list[str]()
        housekeeper.start()
        counts: list[int] = []

        def other() -> None:
            counts.append(len(seen))
            if len(seen) < 5 * VISITS_A_TURN:
                loop.call_soon(other)

        for _ in range(5 * VISITS_A_TURN):
            housekeeper.visit_in(1, lambda: seen.append("visit"))
        loop.call_at(loop.time() + 1, other)
        await asyncio.sleep(2)
        assert counts == [VISITS_A_TURN * turns for turns in range(1, 6)]
        housekeeper.close()

    run_virtually(scenario())


def test_those_left_when_many_were_cancelled_come_in_their_order() -> None:
    async def scenario() -> None:
        housekeeper, seen = Housekeeper(), list[int]()
        housekeeper.start()
        visits = [
            housekeeper.visit_in(1 + number % 7, lambda number=number: seen.append(number))
            for number in range(3000)
        ]
        for number, visit in enumerate(visits):
            if number % 3:
                visit.cancel()
        assert len(housekeeper) == 1000
        assert len(housekeeper._due) < 2000
        await asyncio.sleep(10)
        assert seen == sorted(range(0, 3000, 3), key=lambda number: (number % 7, number))
        assert len(housekeeper) == 0
        housekeeper.close()

    run_virtually(scenario())


@pytest.mark.parametrize(
    ("asked", "cancelled", "times"), [(10, 10, 0), (4000, 1500, 0), (3000, 2900, 2)]
)
def test_cancelled_visits_are_looked_for_only_when_they_are_many_and_most(
    monkeypatch: pytest.MonkeyPatch, asked: int, cancelled: int, times: int
) -> None:
    looked: list[int] = []
    monkeypatch.setattr(housekeeper_module, "heapify", lambda due: looked.append(len(due)))

    async def scenario() -> None:
        housekeeper = Housekeeper()
        housekeeper.start()
        visits = [housekeeper.visit_in(1, lambda: None) for _ in range(asked)]
        for visit in visits[:cancelled]:
            visit.cancel()
        assert len(housekeeper) == asked - cancelled
        assert len(looked) == times
        housekeeper.close()

    run_virtually(scenario())


def test_no_timer_is_left_at_the_end() -> None:
    async def scenario() -> None:
        housekeeper = Housekeeper()
        housekeeper.start()
        housekeeper.visit_in(3600, lambda: None)
        housekeeper.close()
        loop: Any = asyncio.get_running_loop()
        assert [timer for timer in loop._scheduled if not timer.cancelled()] == []

    run_virtually(scenario())


def test_after_the_end_there_are_no_visits() -> None:
    async def scenario() -> None:
        housekeeper, seen = Housekeeper(), list[str]()
        housekeeper.start()
        early = housekeeper.visit_in(1, lambda: seen.append("early"))
        housekeeper.visit_in(2, lambda: seen.append("cancelled")).cancel()
        housekeeper.close()
        assert len(housekeeper) == 0
        housekeeper.visit_in(1, lambda: seen.append("late"))
        assert len(housekeeper) == 0
        await asyncio.sleep(5)
        assert seen == []
        assert early.work is not None

    run_virtually(scenario())


# -- managed ledgers


def keeping_house(
    scenario: "Callable[[ManagedLedgerFactory], object]", config: ManagedLedgerConfig
) -> None:
    async def run() -> None:
        backend = MemoryBackend()
        await backend.open()
        factory = ManagedLedgerFactory(backend, LoopClock(), config)
        await scenario(factory)  # type: ignore[misc]
        await factory.close()
        await backend.close()

    run_virtually(run())


SMALL = ManagedLedgerConfig(max_entries_per_ledger=2, min_rollover_time_ms=0)


async def filled(factory: ManagedLedgerFactory, entries: int = 5) -> ManagedLedger:
    ledger = await factory.open("log")
    for _ in range(entries):
        await ledger.append_one(b"x")
    return ledger


def test_an_idle_managed_ledger_is_not_visited() -> None:
    async def scenario(factory: ManagedLedgerFactory) -> None:
        for number in range(100):
            await (await factory.open(f"log-{number}")).open_cursor("sub")
        await asyncio.sleep(60)
        assert len(factory.housekeeper) == 0

    keeping_house(scenario, ManagedLedgerConfig())


def test_what_was_consumed_is_trimmed_some_seconds_later() -> None:
    async def scenario(factory: ManagedLedgerFactory) -> None:
        ledger = await factory.open("log")
        cursor = await ledger.open_cursor("sub")
        await filled(factory)
        await asyncio.sleep(60)
        assert len(ledger.ledgers()) == 3
        cursor.mark_delete(ledger.last_confirmed)
        await asyncio.sleep(12)
        assert len(ledger.ledgers()) == 1
        await asyncio.sleep(60)
        assert len(factory.housekeeper) == 1, "to roll over what it holds, hours later"

    keeping_house(scenario, SMALL)


@pytest.mark.parametrize("acknowledged_s", [10.0, 10.1, 10.4, 10.6])
def test_what_was_consumed_just_after_a_visit_is_trimmed_by_the_next(acknowledged_s: float) -> None:
    """The visit is at 10 s; acknowledgements since 9.5 s are written at 10.5 s."""

    async def scenario(factory: ManagedLedgerFactory) -> None:
        ledger = await factory.open("log")
        cursor = await ledger.open_cursor("sub")
        await filled(factory)
        await asyncio.sleep(9.5)
        cursor.mark_delete(ledger.first_position)
        await asyncio.sleep(acknowledged_s - 9.5)
        cursor.mark_delete(ledger.last_confirmed)
        await asyncio.sleep(12)
        assert len(ledger.ledgers()) == 1

    keeping_house(scenario, SMALL)


def test_a_deleted_cursor_lets_go_of_what_it_kept() -> None:
    async def scenario(factory: ManagedLedgerFactory) -> None:
        ledger = await factory.open("log")
        await ledger.open_cursor("sub")
        await filled(factory)
        await asyncio.sleep(60)
        await ledger.delete_cursor("sub")
        await asyncio.sleep(11)
        assert len(ledger.ledgers()) == 1

    keeping_house(scenario, SMALL)


def test_retention_lets_go_when_its_time_has_come_though_nothing_happens() -> None:
    async def scenario(factory: ManagedLedgerFactory) -> None:
        ledger = await filled(factory)
        await asyncio.sleep(590)
        assert len(ledger.ledgers()) == 3
        await asyncio.sleep(30)
        assert len(ledger.ledgers()) == 1

    retention = Retention(time_ms=600_000, size_bytes=-1)
    keeping_house(scenario, ManagedLedgerConfig(2, min_rollover_time_ms=0, retention=retention))


def test_an_old_ledger_is_rolled_over_though_nothing_happens() -> None:
    async def scenario(factory: ManagedLedgerFactory) -> None:
        ledger = await filled(factory, entries=1)
        first = ledger.ledgers()[0].ledger_id
        await asyncio.sleep(3590)
        assert [info.ledger_id for info in ledger.ledgers()] == [first]
        await asyncio.sleep(40)
        assert first not in [info.ledger_id for info in ledger.ledgers()]

    keeping_house(scenario, ManagedLedgerConfig(max_rollover_time_ms=3_600_000))


def test_dirty_cursors_are_written_within_a_second_however_many() -> None:
    async def scenario(factory: ManagedLedgerFactory) -> None:
        for number in range(500):
            ledger = await factory.open(f"log-{number}")
            cursor = await ledger.open_cursor("sub")
            cursor.mark_delete(await ledger.append_one(b"x"))
        await asyncio.sleep(1.1)
        assert not any(factory._ledgers[f"log-{n}"].cursors["sub"]._dirty for n in range(500))

    keeping_house(scenario, ManagedLedgerConfig())


def test_what_ends_is_not_visited_any_more() -> None:
    async def scenario(factory: ManagedLedgerFactory) -> None:
        ledger = await filled(factory)
        await ledger.close()
        assert len(factory.housekeeper) == 0

    keeping_house(scenario, SMALL)
