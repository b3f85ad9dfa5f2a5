"""An expensive answer is rendered once for all requests at about the same time."""

import asyncio
import gc
import weakref
from collections.abc import Coroutine
from typing import Any

import pytest
from virtual_loop import run_virtually

from pybroker.admin.shared_answer import MOST_TAKEN, TAKE_S, Rendering, Renderings

RENDER_S = 2.0
KEPT_S = 1.0


class Rendered:
    """Each rendering takes `RENDER_S`; its first piece is its number."""

    def __init__(self) -> None:
        self.begun = self.finished = 0
        self.error: Exception | None = None

    async def __call__(self) -> list[bytes]:
        self.begun += 1
        number = self.begun
        await asyncio.sleep(RENDER_S)
        if self.error is not None:
            raise self.error
        self.finished += 1
        return [b"%d" % number]


class World:
    def __init__(self, kept_s: float = KEPT_S) -> None:
        self.rendered = Rendered()
        self.shared = Renderings(self.rendered, kept_s)
        self.hung_up: list[bytes] = []
        self._taking: list[Any] = []

    def ask(self) -> asyncio.Task[Rendering]:
        return asyncio.ensure_future(self.shared.newest())

    def take(self, rendering: Rendering) -> None:
        """Adds a client that never finishes taking the rendering."""
        taken = rendering.taken(lambda: self._cut_off(rendering, taken))
        taken.__enter__()
        self._taking.append(taken)

    def _cut_off(self, rendering: Rendering, taken: Any) -> None:
        self.hung_up.append(rendering.pieces[0])
        taken.__exit__(None, None, None)


def pieces(rendering: Rendering) -> bytes:
    return b"".join(rendering.pieces)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    run_virtually(scenario)


def test_simultaneous_requests_get_one_rendering() -> None:
    async def scenario() -> None:
        world = World()
        first = world.ask()
        await asyncio.sleep(RENDER_S / 2)
        others = [world.ask() for _ in range(99)]
        answers = {pieces(answer) for answer in await asyncio.gather(first, *others)}
        assert answers == {b"1"}
        assert world.rendered.begun == 1

    run(scenario())


def test_a_rendering_is_kept_for_a_while_and_no_longer() -> None:
    async def scenario() -> None:
        world = World()
        assert pieces(await world.ask()) == b"1"
        await asyncio.sleep(KEPT_S * 0.9)
        assert pieces(await world.ask()) == b"1"
        await asyncio.sleep(KEPT_S * 0.2)
        assert pieces(await world.ask()) == b"2"

    run(scenario())


def test_nothing_is_kept_where_that_is_wished() -> None:
    async def scenario() -> None:
        world = World(kept_s=0)
        assert [pieces(await world.ask()) for _ in range(3)] == [b"1", b"2", b"3"]

    run(scenario())


def test_a_rendering_that_nobody_waits_for_is_given_up() -> None:
    async def scenario() -> None:
        world = World()
        asking = [world.ask() for _ in range(100)]
        await asyncio.sleep(RENDER_S / 2)
        for each in asking:
            each.cancel()
        await asyncio.sleep(10 * RENDER_S)
        assert world.rendered.begun == 1
        assert not world.rendered.finished

    run(scenario())


def test_a_client_that_still_waits_gets_the_rendering_that_others_gave_up() -> None:
    async def scenario() -> None:
        world = World()
        patient, hasty = world.ask(), world.ask()
        await asyncio.sleep(RENDER_S / 2)
        hasty.cancel()
        assert pieces(await patient) == b"1"

    run(scenario())


def test_hanging_up_again_and_again_begins_no_more_renderings_than_waiting_would() -> None:
    async def scenario() -> None:
        world = World()
        for _ in range(100):  # each waits for a tenth of `KEPT_S`
            asking = world.ask()
            await asyncio.sleep(KEPT_S / 10)
            asking.cancel()
        assert world.rendered.begun <= 11

    run(scenario())


def test_a_failure_reaches_all_waiters_and_the_next_request_is_served() -> None:
    async def scenario() -> None:
        world = World()
        world.rendered.error = RuntimeError("no")
        asking = [world.ask() for _ in range(3)]
        for each in asking:
            with pytest.raises(RuntimeError):
                await each
        world.rendered.error = None
        assert pieces(await world.ask()) == b"2"

    run(scenario())


def test_slow_takers_hold_no_more_than_some_renderings() -> None:
    async def scenario() -> None:
        world = World()
        for _ in range(MOST_TAKEN):
            world.take(await world.ask())
            await asyncio.sleep(KEPT_S * 1.1)
        newest = b"%d" % MOST_TAKEN
        stale = await world.ask()
        assert pieces(stale) == newest, "another one would be too many"
        assert not world.hung_up
        await asyncio.sleep(TAKE_S)
        assert pieces(await world.ask()) == b"%d" % (MOST_TAKEN + 1)
        assert world.hung_up == [b"1"]

    run(scenario())


def test_a_rendering_that_was_taken_is_forgotten() -> None:
    async def scenario() -> None:
        world = World()
        rendering = await world.ask()
        with rendering.taken(lambda: None):
            forgotten = weakref.ref(rendering)
            del rendering
        await asyncio.sleep(KEPT_S * 1.1)
        gc.collect()
        assert forgotten() is None

    run(scenario())
