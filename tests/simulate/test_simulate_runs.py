"""Seeds of small pipelines: declarations of a scenario, faults, and results."""

import asyncio
import itertools
import os
import random
import socket
import sys
import threading
import time
import uuid

import pytest

from pybroker.client import Client as BlockingClient
from pybroker.client.aio import Client, InitialPosition, Producer
from pybroker.simulation import KINDS, BrokenPromise, ScenarioError, run_seed, simulate
from pybroker.simulation.plan import described, draw
from pybroker.simulation.recording import recorded_clients
from pybroker.simulation.shrinking import shrunk


async def copier(service_url, before_ack=0.0):
    """Sends, then acknowledges."""
    async with Client(service_url) as client:
        producer = await client.create_producer("copies")
        consumer = await client.subscribe(
            "orders", "copier", initial_position=InitialPosition.Earliest
        )
        while True:
            order = await consumer.receive()
            await producer.send(order.data())
            await asyncio.sleep(before_ack)
            await consumer.acknowledge(order)


def copying(*kinds, before_ack=0.05):
    def scenario(sim):
        sim.input("orders", 4)
        sim.process("copier", copier, sim.service_url, before_ack=before_ack)
        sim.output("copies")
        sim.faults(*kinds)

    return scenario


def doing(work, *kinds):
    """A scenario with one process that runs `work`."""

    def scenario(sim):
        sim.process("worker", work)
        sim.faults(*kinds)

    return scenario


def first_failure(scenario, seeds=60):
    outcomes = (run_seed(scenario, seed) for seed in range(seeds))
    return next(outcome for outcome in outcomes if outcome.violations)


def texts(outcome):
    return [str(violation) for violation in outcome.violations]


def test_producers_of_every_kind_of_topic_are_recorded():
    with recorded_clients():
        for kind in Producer.__subclasses__():
            for method in Producer.send_message, Producer.submit:
                assert hasattr(vars(kind)[method.__name__], "__wrapped__"), kind


def test_without_faults_nothing_breaks():
    outcome = run_seed(copying(), 1)
    assert outcome.violations == () == outcome.faults
    assert any("'orders-3' is stored in copies" in event.text for event in outcome.events)


def test_a_seed_gives_the_same_history_twice():
    first, second = run_seed(copying(*KINDS), 5), run_seed(copying(*KINDS), 5)
    assert first == second
    assert first.digest != run_seed(copying(*KINDS), 6).digest


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_strikes(kind):
    """Each kind strikes within a few seeds, and the timeline shows it."""
    scenario = copying(kind)
    outcomes = (run_seed(scenario, seed) for seed in range(30))
    assert any("FAULT" in event.text for outcome in outcomes for event in outcome.events)


def test_a_crash_names_the_await():
    outcome = first_failure(copying("crash"))
    assert outcome.violations[0].kind == "DOUBLED"
    crashes = [event.text for event in outcome.events if "crashes at" in event.text]
    assert any("crashes at test_simulate_runs.py:" in text and "`await" in text for text in crashes)


@pytest.mark.slow
def test_a_failing_seed_is_shrunk_to_the_fewest_faults():
    scenario = copying("crash", "stall", "slow disk", "clock")
    outcomes = (run_seed(scenario, seed) for seed in range(100))
    failed = next(each for each in outcomes if each.violations and len(each.faults) > 2)
    runs = []

    def run(chosen):
        runs.append(tuple(chosen))
        return run_seed(scenario, failed.seed, chosen)

    least = shrunk(failed, run)
    assert len(least.chosen) == 1
    assert failed.faults[least.chosen[0]].kind == "crash"
    assert least.violations[0].kind == "DOUBLED"
    assert runs[0] == ()  # no fault might have sufficed
    assert run_seed(scenario, failed.seed, least.chosen) == least


@pytest.mark.slow
def test_simulate_raises_the_report():
    with pytest.raises(BrokenPromise, match="DOUBLED: 'orders-") as caught:
        simulate(copying("crash"), seeds=60)
    text = str(caught.value)
    assert "FAULT" in text
    assert "crashes at test_simulate_runs.py:" in text
    assert f"simulate(scenario, seeds=1, start={caught.value.outcome.seed})" in text


def test_simulate_refuses_a_running_loop():
    async def within():
        simulate(copying(), seeds=1)

    with pytest.raises(ScenarioError, match="call it from a plain function"):
        asyncio.run(within())


def test_a_check_of_the_user_is_asserted():
    def scenario(sim):
        copying()(sim)

        @sim.check
        def there_are_five(topics):
            assert len(topics["copies"]) == 5, "no five copies"

        @sim.check
        async def somebody_paid(topics):
            await asyncio.sleep(1.4)
            assert not topics["orders"], f"{topics['orders'][0].key} owes"

    assert texts(run_seed(scenario, 0)) == [
        "CHECK: AssertionError: no five copies",
        "CHECK: AssertionError: key-0 owes",
    ]


async def summer(service_url):
    """Publishes the number of orders so far."""
    async with Client(service_url) as client:
        producer = await client.create_producer("sums")
        consumer = await client.subscribe(
            "orders", "summer", initial_position=InitialPosition.Earliest
        )
        for count in itertools.count(1):
            await consumer.acknowledge(await consumer.receive())
            await producer.send(b"%d" % count)


def summing(*topics):
    def scenario(sim):
        sim.input("orders", 4)
        sim.process("summer", summer, sim.service_url)
        for topic in topics:
            sim.topic(topic)
        sim.faults()

        @sim.check
        def the_last_sum_is_right(logs):
            assert logs["sums"][-1].data == b"4"

    return scenario


def test_a_topic_of_sums_is_judged_by_checks_alone():
    assert texts(run_seed(summing("sums"), 0)) == []


def test_a_check_that_asks_for_another_topic_is_told_to_declare_it():
    with pytest.raises(ScenarioError, match=r"call sim.topic\('sums'\). Declared: orders"):
        run_seed(summing(), 0)


def test_a_check_that_exits_has_failed():
    def scenario(sim):
        sim.process("nothing", nothing)
        sim.faults()
        sim.check(lambda logs: sys.exit(0))

    assert texts(run_seed(scenario, 0)) == ["CHECK: failed to run: SystemExit: 0"]


def test_a_process_that_is_not_async_is_told_so():
    def plain():
        return 1

    def scenario(sim):
        sim.input("orders", 4)
        sim.process("worker", plain)
        sim.faults()

    (text,) = texts(run_seed(scenario, 0))
    assert text.endswith("plain is not async: write `async def`")


def test_a_program_is_refused_with_what_to_do():
    async def work():
        await asyncio.create_subprocess_exec("true")

    (text,) = texts(run_seed(doing(work), 0))
    assert "a simulation starts no programs: call an async function in its place" in text


def test_an_assertion_of_a_process_is_a_violation():
    async def work():
        await asyncio.sleep(1)
        assert 1 > 2, "as expected"

    assert texts(run_seed(doing(work), 0)) == ["ASSERTION: worker: AssertionError: as expected"]


def test_an_assertion_in_a_task_group_is_a_violation():
    async def fails():
        assert 1 > 2, "as expected"

    async def work():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails())

    assert texts(run_seed(doing(work), 0)) == ["ASSERTION: worker: AssertionError: as expected"]


def test_a_task_group_that_fails_while_the_broker_is_down_is_no_broken_promise():
    attempts = []

    async def work():
        async def fails():
            attempts.append(time.time())
            if len(attempts) <= 7:
                raise ConnectionRefusedError("the broker is down")

        async with asyncio.TaskGroup() as tasks, asyncio.TaskGroup() as inner:
            tasks.create_task(fails())
            inner.create_task(asyncio.sleep(0))

    assert texts(run_seed(doing(work), 0)) == []
    assert len(attempts) == 8


def test_the_error_in_a_task_group_is_told():
    async def fails():
        raise TypeError("no such thing")

    async def work():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails())

    assert texts(run_seed(doing(work), 0)) == [
        "PROCESS FAILS: worker ended 5 times in a row with TypeError: no such thing"
    ]


def test_a_process_that_cannot_run_is_told_soon():
    async def work():
        raise TypeError("no such thing")

    outcome = run_seed(doing(work), 0)
    assert texts(outcome) == [
        "PROCESS FAILS: worker ended 5 times in a row with TypeError: no such thing"
    ]
    assert outcome.virtual_s < 20


def test_a_process_that_exits_is_started_again():
    lives = []

    async def work():
        lives.append(time.time())
        if len(lives) < 3:
            raise SystemExit(1)

    assert run_seed(doing(work), 0).violations == ()
    assert len(lives) == 3


def test_time_and_chance_are_the_simulations():
    seen = []

    async def work():
        start = time.monotonic(), time.time(), time.perf_counter_ns()
        await asyncio.sleep(1.4)
        seen.append(round(time.monotonic() - start[0]))
        seen.append(round(time.time() - start[1]))
        vars(time)["sleep"](60)  # a mistake in asyncio code, but time passes
        await asyncio.sleep(0)
        seen.append(round(time.monotonic() - start[0]))
        await asyncio.to_thread(vars(time)["sleep"], 60)
        seen.append(round((time.perf_counter_ns() - start[2]) / 1e9))
        seen.append((random.random(), uuid.uuid4(), random.Random().random()))

    for _ in range(2):
        assert run_seed(doing(work), 3).violations == ()
    assert seen[:4] == [1, 1, 61, 121]
    assert seen[:5] == seen[5:]


def test_the_modules_are_as_they_were_afterwards():
    def patched():
        return time.time, random.Random, threading.Thread.start, socket.socket.connect, os.fork

    state, real = random.getstate(), patched()
    run_seed(copying(*KINDS), 2)
    assert random.getstate() == state
    assert patched() == real


def test_another_thread_has_real_time_while_a_job_of_the_simulation_runs():
    """Its sleeps once counted as the job's, so a commit of the journal seemed to take as long."""
    asked, answered, seen = threading.Event(), threading.Event(), []

    def real():
        assert asked.wait(60)
        vars(time)["sleep"](0.001)
        seen.append(time.monotonic())
        answered.set()

    def job():
        asked.set()
        assert answered.wait(60)
        return time.monotonic()

    async def work():
        seen.append(await asyncio.get_running_loop().run_in_executor(None, job))
        await asyncio.get_running_loop().create_future()

    def scenario(sim):
        sim.process("p", work)
        sim.check(lambda: None)
        sim.faults()

    thread = threading.Thread(target=real)
    thread.start()
    before = time.monotonic()
    run_seed(scenario, 0)
    thread.join()
    assert before <= seen[0] <= time.monotonic()
    assert seen[1] < 60  # virtual seconds


def test_a_thread_is_refused_with_what_to_do():
    async def work():
        BlockingClient("pulsar://127.0.0.1:6650").subscribe("orders", "s")

    (text,) = texts(run_seed(doing(work), 0))
    assert "a simulation runs no threads: use pybroker.client.aio" in text


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in the loop", "in an executor"])
def test_the_real_network_is_refused_with_what_to_do(elsewhere):
    async def work():
        with socket.socket() as connection:
            if elsewhere:
                await asyncio.to_thread(connection.connect, ("127.0.0.1", 9))
            connection.connect(("127.0.0.1", 9))

    (text,) = texts(run_seed(doing(work), 0))
    assert "a simulation has no real network: use asyncio.open_connection(…)" in text


def test_a_fork_is_refused_with_what_to_do():
    async def work():
        os.fork()

    (text,) = texts(run_seed(doing(work), 0))
    assert "a simulation cannot fork: declare another process" in text


def test_processes_reach_each_others_servers():
    """So a service that a pipeline calls can be a process of the scenario."""
    heard = []

    async def service():
        async def answer(reader, writer):
            writer.write((await reader.readline()).upper())
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 8080)
        await server.serve_forever()

    async def work():
        reader, writer = await asyncio.open_connection("localhost", 8080)
        writer.write(b"price?\n")
        heard.append(await reader.readline())

    def scenario(sim):
        sim.process("service", service)
        sim.process("worker", work)
        sim.faults()

    assert run_seed(scenario, 0).violations == ()
    assert heard == [b"PRICE?\n"]


async def second_stage(service_url):
    async with Client(service_url, transactional_id="second") as client:
        producer = await client.create_producer("results")
        consumer = await client.subscribe(
            "copies", "second", initial_position=InitialPosition.Earliest
        )
        while True:
            copy = await consumer.receive()
            async with await client.new_transaction() as txn:
                await producer.send(copy.data(), txn=txn)
                await consumer.acknowledge(copy, txn=txn)


@pytest.mark.slow
def test_a_process_that_hangs_at_its_start_is_waited_for():
    """Without a subscription it has no backlog."""

    def scenario(sim):
        copying(before_ack=0.0)(sim)
        sim.process("second", second_stage, sim.service_url)
        sim.output("results")
        sim.faults("silence")

    outcomes = [run_seed(scenario, seed) for seed in range(10)]
    assert not [text for outcome in outcomes for text in texts(outcome) if "LOST" in text]


@pytest.mark.slow
def test_settings_reach_the_broker():
    def scenario(sim):
        copying()(sim)
        sim.broker(allow_auto_topic_creation=False)

    assert any("TopicNotFound" in event.text for event in run_seed(scenario, 0).events)


async def nothing():
    """A process that returns at once."""


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda sim: None, "has no process"),
        (lambda sim: nothing(), "without async"),
        (lambda sim: sim.faults("earthquake"), "there is no fault 'earthquake'"),
        (lambda sim: sim.broker(no_such_field=1), "no field 'no_such_field'"),
        (lambda sim: [sim.process("a", nothing), sim.process("a", nothing)], "two processes"),
        (lambda sim: sim.process("a", nothing()), "'a' is not a function"),
        (
            lambda sim: [sim.process("a", nothing), sim.output("o"), sim.input("i", ["x", "x"])],
            "appears twice",
        ),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused(declare, says):
    with pytest.raises(ScenarioError, match=says):
        run_seed(declare, 0)


def test_faults_are_described():
    rng = random.Random(0)
    drawn = {fault.kind: fault for _ in range(200) for fault in draw(rng, ["p"], list(KINDS))}
    assert set(drawn) == set(KINDS)
    for fault in drawn.values():
        assert "s into the work" in described(fault)
