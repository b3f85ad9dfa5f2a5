"""Inputs: each is published exactly once while faults happen, and faults meet the work on them."""

import pytest

from pybroker.client.aio import Client, InitialPosition, MessageId
from pybroker.simulation import NothingTested, run_seed, simulate
from pybroker.simulation.coverage import Coverage, Strikes
from pybroker.simulation.main import main

BROKER_FAULTS = ("broker crash", "broker stop", "disk full", "disk fails", "stall")


async def reading(service_url, position):
    """Sends, then remembers its position: a crash in between doubles."""
    async with Client(service_url) as client:
        producer = await client.create_producer("copies")
        start = position[-1] if position else MessageId.earliest
        async with await client.create_reader("orders", start) as orders:
            while True:
                order = await orders.read_next()
                await producer.send(order.data())
                position.append(order.message_id())


def reading_scenario(sim):
    sim.input("orders", 12)
    sim.process("reader", reading, sim.service_url, [])
    sim.output("copies", ordered=False)
    sim.faults("crash")


async def billing_once(service_url):
    """Bills each order number once; finds the numbers that were billed in its own output."""
    async with Client(service_url, transactional_id="billing") as client:
        invoices = await client.create_producer("invoices")
        billed = set()
        async with await client.create_reader("invoices", MessageId.earliest) as reader:
            while await reader.has_message_available():
                billed.add((await reader.read_next()).data())
        orders = await client.subscribe(
            "orders", "billing", initial_position=InitialPosition.Earliest
        )
        while True:
            order = await orders.receive()
            async with await client.new_transaction() as txn:
                if order.data() not in billed:
                    await invoices.send(order.data(), txn=txn)
                await orders.acknowledge(order, txn=txn)
            billed.add(order.data())


def billing(duplicates=False, partitioned=False):
    def scenario(sim):
        sim.input("orders", 12, duplicates=duplicates)
        sim.process("billing", billing_once, sim.service_url)
        sim.output("invoices")
        sim.faults(*BROKER_FAULTS)

        @sim.check
        def orders_are_there_once(logs):
            orders = [record.data for record in logs["orders"]]
            assert duplicates or len(orders) == len(set(orders)), orders

    return scenario


@pytest.mark.slow
def test_inputs_are_in_their_topic_once_whatever_happens_to_the_broker():
    simulate(billing(), seeds=120)


@pytest.mark.slow
def test_a_publisher_may_double_inputs_if_it_is_asked_to():
    """A pipeline that drops duplicates keeps its promises, and the history tells of them."""
    doubled = []
    for seed in range(120):
        outcome = run_seed(billing(duplicates=True), seed)
        assert outcome.violations == ()
        doubled += [event for event in outcome.events if "is in its topic 2 times" in event.text]
    assert doubled


def test_a_reader_is_tested_while_it_works():
    outcome = next(
        outcome
        for outcome in (run_seed(reading_scenario, seed) for seed in range(60))
        if outcome.violations
    )
    assert outcome.violations[0].kind == "DOUBLED"
    texts = [event.text for event in outcome.events]
    assert texts.index("'orders-0' is in orders") < texts.index("no more faults")
    assert outcome.met


async def late(service_url):
    """Has a subscription only after the publisher has given up waiting for one."""
    async with Client(service_url) as client:
        producer = await client.create_producer("copies")
        reader = await client.create_reader("elsewhere", MessageId.earliest)
        await reader.read_next()
        await producer.send(b"never")


def late_scenario(sim):
    sim.input("orders", 2)
    sim.process("late", late, sim.service_url)
    sim.output("copies", expect=lambda data: [])


def test_faults_wait_for_an_input_that_comes_late():
    """The publisher waits for ten seconds; faults are over after five, unless there is no input."""
    late_faults = []
    for seed in range(20):
        texts = [event.text for event in run_seed(late_scenario, seed).events]
        there = texts.index("'orders-0' is in orders")
        late_faults += [text for text in texts[there:] if "FAULT" in text]
    assert len(late_faults) > 3


def test_seeds_whose_faults_met_no_work_are_no_success():
    with pytest.raises(NothingTested, match="3 seeds: no fault met work"):
        simulate(late_scenario, seeds=3)
    simulate(late_scenario, seeds=1)  # it may have drawn none


def test_a_scenario_that_wants_no_faults_gets_none():
    def scenario(sim):
        late_scenario(sim)
        sim.faults()

    simulate(scenario, seeds=2)


@pytest.mark.slow
def test_the_command_does_not_end_with_0_if_no_fault_met_work(capfd, monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import asyncio\n"
        "async def work(): await asyncio.sleep(1)\n"
        "def scenario(sim):\n"
        "    sim.input('orders', 2)\n"
        "    sim.process('p', work)\n"
        "    sim.output('copies', expect=lambda data: [])\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["mine.py:scenario", "--seeds", "3", "--jobs", "1"]) == 2
    said = capfd.readouterr().out
    assert "3 seeds, every promise was kept\nno fault met work" in said


def test_a_strike_meets_work_between_the_first_and_the_last_action():
    strikes = Strikes()
    for number, at_s in ((1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0)):
        strikes.add(f"FAULT {number}", at_s)
    assert strikes.met(1.0, 3.0) == (1, 2)


def test_coverage_names_the_kinds_that_met_nothing():
    coverage = Coverage(("crash", "clock", "stall"))
    coverage.met.update(["crash", "crash", "stall"])
    assert str(coverage) == "faults that met work: crash 2, stall 1; none: clock"
