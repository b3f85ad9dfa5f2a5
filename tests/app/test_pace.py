"""Long tasks share the event loop."""

import asyncio

import pytest
from virtual_loop import run_virtually

from pybroker.base.runtime import Pace, own_turn


class Turns:
    """Counts the loop's turns, and records in which turn each task ran."""

    def __init__(self) -> None:
        self.number = 0
        self.ran: list[int] = []
        self._count()

    def _count(self) -> None:
        self.number += 1
        self._next = asyncio.get_running_loop().call_soon(self._count)

    def note(self) -> None:
        self.ran.append(self.number)

    def stop(self) -> None:
        self._next.cancel()


async def work(turns: Turns, steps: int) -> None:
    pace = Pace(1)
    await pace.turn()
    for _ in range(steps):
        turns.note()
        await pace.step()


def test_of_many_long_works_one_goes_on_in_a_turn_of_the_loop() -> None:
    async def scenario() -> list[int]:
        turns = Turns()
        await asyncio.gather(*(work(turns, 5) for _ in range(20)))
        turns.stop()
        return turns.ran

    ran = run_virtually(scenario())
    assert len(ran) == 100
    assert len(set(ran)) == 100


def test_long_works_take_turns() -> None:
    async def scenario() -> list[str]:
        order: list[str] = []

        async def named(name: str) -> None:
            pace = Pace(1)
            for _ in range(3):
                order.append(name)
                await pace.step()

        await asyncio.gather(named("a"), named("b"))
        return order

    assert run_virtually(scenario()) == ["a", "b"] * 3


def test_a_work_that_is_given_up_while_it_waits_takes_no_turn() -> None:
    async def scenario() -> None:
        waiting = [asyncio.ensure_future(own_turn()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[1].cancel()
        await asyncio.wait_for(waiting[2], 1)
        for given_up in waiting[:2]:
            with pytest.raises(asyncio.CancelledError):
                await given_up

    run_virtually(scenario())
