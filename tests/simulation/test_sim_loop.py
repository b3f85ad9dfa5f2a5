"""The simulated world keeps asyncio's guarantees, and shuffles the rest."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
from checks.history import History
from clients.plain import Process

from pybroker.simulation.events import Weather
from pybroker.simulation.world import OutOfSteps, World


@pytest.fixture
def world():
    world = World(seed=1)
    yield world
    world.close()


def test_hours_pass_in_no_time(world):
    async def wait():
        await asyncio.sleep(7200)
        return asyncio.get_running_loop().time()

    assert world.call(world.node("a"), wait(), within_s=10_000) >= 7200


def test_call_soon_is_first_in_first_out(world):
    node, order = world.node("a"), []
    for number in range(100):
        node.call_soon(order.append, number)
    world.sleep(1)
    assert order == list(range(100))


def test_timers_fire_in_order_of_their_deadlines(world):
    node, order = world.node("a"), []
    for number in (3, 1, 2):
        node.call_later(number / 1e6, order.append, number)
    world.sleep(1)
    assert order == [1, 2, 3]


def test_a_cancelled_timer_neither_fires_nor_moves_time(world):
    fired = []
    world.node("a").call_later(5, fired.append, 1).cancel()
    assert not world.run(lambda: bool(fired), within_s=1)
    assert world.steps == 0


def test_jobs_of_one_executor_run_in_order():
    async def work(executor, order):
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(executor, order.append, n) for n in range(20)))

    for seed in range(20):
        world, order = World(seed), []
        world.call(world.node("a"), work(ThreadPoolExecutor(1), order))
        assert order == list(range(20))
        world.close()


def test_a_job_s_failure_is_raised_where_it_is_awaited(world):
    async def divide():
        await asyncio.get_running_loop().run_in_executor(None, lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        world.call(world.node("a"), divide())


def test_asyncio_timeouts_work_on_virtual_time(world):
    async def wait():
        async with asyncio.timeout(30):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        world.call(world.node("a"), wait())
    assert 30 <= world.now < 31


def test_a_crashed_node_runs_no_finally_block(world):
    seen = []

    async def work():
        try:
            await asyncio.sleep(1)
        finally:
            seen.append("cleaned up")

    node = world.node("a")
    node.start(work())
    world.sleep(0.5)
    node.crash()
    world.sleep(5)
    assert seen == []


def test_what_work_starts_when_it_is_buried_is_buried_too(world, recwarn):
    async def clean_up():
        pass

    async def work():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            started.append(asyncio.get_running_loop().create_task(clean_up()))

    node, started = world.node("a"), []
    for _ in range(300):
        node.start(work())
    world.sleep(1)
    world.close()
    assert len(started) == 300
    started.clear()
    gc.collect()
    # Only warnings about this world: garbage of other tests is collected here, too.
    said = [str(warning.message) for warning in recwarn]
    assert [message for message in said if "clean_up" in message or "work" in message] == []


def test_a_client_that_crashes_while_it_is_down_comes_to_life_once(world):
    class Waiting(Process):
        async def work(self, client):
            await asyncio.sleep(3600)

    client = Waiting(world, History(), "c")
    client.start()
    world.sleep(1)
    client.crash(down_s=2)
    client.crash(down_s=1)
    world.sleep(5)
    assert client.incarnation == 2


def test_a_spinning_node_is_noticed(world):
    async def spin():
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    world.node("a").start(spin())
    with pytest.raises(OutOfSteps):
        world.run(lambda: False, within_s=1e9, max_steps=10_000)


def test_an_exception_that_nobody_handles_is_a_failure_of_the_world(world):
    world.node("a").call_soon(lambda: 1 / 0)
    world.sleep(1)
    assert "ZeroDivisionError" in world.failures[0]


def interleaving(seed: int) -> list[str]:
    async def steps(name: str) -> None:
        for _ in range(10):
            order.append(name)
            await asyncio.sleep(0)

    world, order = World(seed, Weather()), []
    for name in ("a", "b", "c"):
        world.node(name).start(steps(name))
    world.sleep(1)
    world.close()
    return order


def test_one_seed_gives_one_interleaving_of_nodes():
    assert interleaving(7) == interleaving(7)
    assert len({tuple(interleaving(seed)) for seed in range(20)}) > 15
