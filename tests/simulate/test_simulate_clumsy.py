"""Clumsy scenarios and processes: none of them passes."""

import asyncio
import contextlib
import time

import pytest

from pybroker.client.aio import Client, InitialPosition
from pybroker.simulation import ScenarioError, run_seed
from pybroker.simulation.report import kept
from pybroker.simulation.run import SeedRun


async def nothing():
    """A process that returns at once."""


async def copier(service_url):
    async with Client(service_url) as client:
        producer = await client.create_producer("copies")
        consumer = await client.subscribe("orders", "s", initial_position=InitialPosition.Earliest)
        while True:
            order = await consumer.receive()
            await producer.send(order.data())
            await consumer.acknowledge(order)


def copying(declare):
    """The copier without faults, and with the declarations of `declare`."""

    def scenario(sim):
        sim.faults()
        sim.process("copier", copier, sim.service_url)
        declare(sim)

    return scenario


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda sim: sim.input("orders", 0), "'orders' has 0 messages: give at least 1"),
        (lambda sim: sim.input("orders", [None]), "bytes or a text, not None"),
        (lambda sim: sim.input("a b//c/d/e", 1), "Topic 'a b//c/d/e'"),
        (lambda sim: sim.input(7, 1), "a topic is a text, not 7"),
        (lambda sim: sim.input("non-persistent://public/default/orders", 1), "stores nothing"),
        (
            lambda sim: [sim.input("a", 1), sim.input("persistent://public/default/a", ["x"])],
            "are one topic: use one spelling",
        ),
        (lambda sim: [sim.input("orders", 1), sim.output("orders")], "an input and an output"),
        (lambda sim: sim.output("copies"), "it is unknown what belongs in 'copies'"),
        (
            lambda sim: [sim.input("orders", 1), sim.output("copies"), sim.output("copies")],
            "declared as an output twice",
        ),
        (lambda sim: sim.check(None), "sim.check takes a function"),
        (lambda sim: sim.process(None, nothing), "the name of a process is a text"),
        (lambda sim: sim.broker(transaction_buffer="no such"), "must be one of: logOrder"),
        (lambda sim: sim.broker(max_message_size="x"), "must be a whole number"),
        (
            lambda sim: [sim.input("orders", 1), sim.output("copies", expect=lambda data: 5)],
            "`expect` of copies returns 5",
        ),
    ],
)
def test_what_could_not_be_judged_is_refused(declare, says):
    with pytest.raises(ScenarioError, match=says):
        run_seed(copying(declare), 0)


def test_a_scenario_without_an_argument_is_told_to_take_one():
    with pytest.raises(ScenarioError, match="write `def scenario\\(sim\\)`"):
        run_seed(lambda: None, 0)


def test_nothing_is_called_kept_where_nothing_was_judged():
    outcome = run_seed(copying(lambda sim: sim.input("orders", 1)), 0)
    assert outcome.violations == ()
    assert "without outputs and checks" in kept(outcome.judged)


def test_an_input_that_is_not_in_its_topic_any_more_is_not_judged_as_kept():
    """Its loss cannot be judged."""
    run = SeedRun(copying(lambda sim: [sim.input("orders", 2), sim.output("copies")]), 0)
    read = run._read

    async def read_less(topics):
        logs = await read(topics)
        del logs["orders"][0]
        return logs

    run._read = read_less
    (violation,) = run.run().violations
    assert violation.kind == "STUCK"
    assert "the input 'orders-0' is not in orders any more" in violation.text


@pytest.mark.slow
def test_an_input_that_cannot_be_published_says_why():
    def declare(sim):
        sim.input("orders", ["x" * 2000])
        sim.output("copies")
        sim.broker(max_message_size=1000)

    (violation,) = run_seed(copying(declare), 0).violations
    assert violation.kind == "STUCK"
    assert "could not be published within 240 s: orders: " in violation.text


async def exiting():
    raise SystemExit(3)


def test_an_exit_in_a_task_of_its_own_ends_the_process():
    lives = []

    async def work():
        lives.append(time.time())
        if len(lives) < 3:
            task = asyncio.create_task(exiting())
            await asyncio.sleep(60)
            task.cancel()

    def scenario(sim):
        sim.faults()
        sim.process("worker", work)

    assert run_seed(scenario, 0).violations == ()
    assert len(lives) == 3


def test_a_process_that_catches_everything_is_crashed_all_the_same():
    lives = []

    async def work():
        lives.append(0)
        while True:
            with contextlib.suppress(BaseException):
                await asyncio.sleep(0.1)

    def scenario(sim):
        sim.process("worker", work)
        sim.faults("crash")

    for seed in range(4):
        assert run_seed(scenario, seed).violations == ()
    assert len(lives) > 4


def test_calendars_follow_the_simulations_clock():
    seen = []

    async def work():
        for _ in range(2):
            seen.append((time.localtime()[:5], time.gmtime()[:5], time.ctime()))
            seen.append(time.strftime("%Y-%m-%d %H:%M"))
            await asyncio.sleep(1)
        assert time.gmtime(0)[:3] == (1970, 1, 1)
        assert time.strftime("%Y", time.gmtime(0)) == "1970"

    def scenario(sim):
        sim.faults()
        sim.process("worker", work)
        sim.check(lambda logs: None)

    for _ in range(2):
        assert run_seed(scenario, 1).violations == ()
    assert seen[1] == time.strftime("%Y-%m-%d %H:%M", time.localtime(1_700_000_000))
    assert seen[:4] == seen[4:]
