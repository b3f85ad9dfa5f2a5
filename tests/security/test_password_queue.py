"""The order in which passwords are compared, and refusals when too many wait."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from pybroker.base.errors import TooManyRequests
from pybroker.base.runtime import SystemClock
from pybroker.security.password_queue import MOST_OF_ADDRESS, MOST_WAITING, PasswordQueue


class World:
    """Blocks the thread at its first comparison until all expected logins wait."""

    def __init__(self) -> None:
        self.queue = PasswordQueue(SystemClock())
        self.order: list[str] = []
        self._go_on = threading.Event()
        self._asked: list[asyncio.Task[bool]] = []
        self.ask("held", "x")

    def ask(self, address: str, user: str) -> asyncio.Task[bool]:
        compare = self.queue.compare(address, user, lambda: self._compare(f"{user}@{address}"))
        self._asked.append(asyncio.ensure_future(compare))
        return self._asked[-1]

    def _compare(self, name: str) -> bool:
        assert self._go_on.wait(30)
        self.order.append(name)
        return True

    async def settle(self) -> None:
        """Returns when all logins are waiting."""
        for _ in range(3):
            await asyncio.sleep(0)

    async def results(self) -> list[Any]:
        await self.settle()
        self._go_on.set()
        return await asyncio.gather(*self._asked, return_exceptions=True)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_addresses_take_turns_however_many_one_of_them_asks_for() -> None:
    async def scenario() -> None:
        world = World()
        await world.settle()
        for number in range(5):
            world.ask("guesser", f"u{number}")
        world.ask("other", "anna")
        await world.results()
        assert world.order.index("anna@other") <= 2

    run(scenario())


def test_users_of_an_address_take_turns() -> None:
    async def scenario() -> None:
        world = World()
        await world.settle()
        for _ in range(5):
            world.ask("proxy", "guessed")
        world.ask("proxy", "anna")
        await world.results()
        assert world.order.index("anna@proxy") <= 2

    run(scenario())


def test_addresses_without_failures_come_first() -> None:
    async def scenario() -> None:
        world = World()
        await world.settle()
        for number in range(40):
            world.queue.failed(f"guesser{number}")
            world.ask(f"guesser{number}", "admin")
        world.ask("other", "anna")
        await world.results()
        assert world.order.index("anna@other") <= 2

    run(scenario())


def test_addresses_that_failed_have_a_turn_now_and_then() -> None:
    async def scenario() -> None:
        world = World()
        await world.settle()
        world.queue.failed("forgetful")
        for number in range(30):
            world.ask(f"a{number}", "anna")
        world.ask("forgetful", "berta")
        await world.results()
        assert world.order.index("berta@forgetful") <= 4

    run(scenario())


def test_a_full_queue_makes_room_at_the_cost_of_the_address_that_has_most() -> None:
    async def scenario() -> None:
        world = World()
        await world.settle()
        for number in range(MOST_WAITING):
            world.ask(f"guesser{number % 5}", f"u{number}")
        await world.settle()
        anna = world.ask("other", "anna")
        refused = [each for each in await world.results() if isinstance(each, TooManyRequests)]
        assert anna.result()
        assert len(refused) == 1

    run(scenario())


def test_an_address_makes_room_at_the_cost_of_the_guessed_user() -> None:
    async def scenario() -> None:
        world = World()
        await world.settle()
        guesses = [world.ask("proxy", "guessed") for _ in range(MOST_OF_ADDRESS)]
        await world.settle()
        anna, guess = world.ask("proxy", "anna"), world.ask("proxy", "guessed")
        await world.results()
        assert anna.result()
        for refused in (guesses[-1], guess):
            with pytest.raises(TooManyRequests):
                refused.result()

    run(scenario())


def test_who_hangs_up_gives_up_its_place() -> None:
    async def scenario() -> None:
        world = World()
        await world.settle()
        gone = world.ask("a", "gone")
        world.ask("a", "there")
        await world.settle()
        gone.cancel()
        await world.results()
        assert world.order == ["x@held", "there@a"]

    run(scenario())


def test_an_error_of_a_comparison_is_told_and_the_next_one_goes_on() -> None:
    async def scenario() -> None:
        queue = PasswordQueue(SystemClock())

        def broken() -> bool:
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await queue.compare("a", "u", broken)
        assert await queue.compare("a", "u", lambda: True)

    run(scenario())
