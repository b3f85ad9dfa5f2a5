"""Pipelines with aiokafka: what they do is told, and judged by the offsets of their groups."""

import asyncio
import runpy
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from documents import ROOT, blocks

from pybroker.simulation import Simulation, run_seed

RIGHT = runpy.run_path(str(ROOT / "examples/simulated/kafka_exactly_once.py"))["scenario"]


def test_what_a_pipeline_does_with_aiokafka_is_told():
    outcome = run_seed(RIGHT, 0)
    assert outcome.violations == ()
    told = {each.text for each in outcome.events}
    assert told >= {
        "receives 'orders-0' from orders, offset 0",
        "sends 'invoice for orders-0' to invoices",
        "'invoice for orders-0' is stored in invoices",
        "sends offsets to its transaction",
        "commits its transaction: done",
    }


def test_the_documents_example_keeps_every_promise():
    name = "runs in tests/simulate/test_simulate_kafka.py"
    (example,) = (
        block.text for block in blocks(ROOT / "docs/testing.md") if block.declared == name
    )
    names: dict[str, Any] = {}
    exec(example, names)
    assert run_seed(names["scenario"], 2).violations == ()


def test_faults_meet_the_work_of_aiokafka():
    outcomes = [run_seed(RIGHT, seed) for seed in range(1, 3)]
    assert [each.violations for each in outcomes] == [(), ()]
    assert any(each.met for each in outcomes)


async def forgetful(bootstrap):
    """Never commits an offset."""
    orders = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=bootstrap,
        group_id="forgetful",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    invoices = AIOKafkaProducer(bootstrap_servers=bootstrap)
    async with invoices, orders:
        async for order in orders:
            await invoices.send_and_wait("invoices", order.value)


def test_inputs_whose_offsets_no_group_has_committed_are_not_acknowledged():
    def scenario(sim: Simulation):
        sim.broker(kafka_service_port=0)
        sim.input("orders", 3)
        sim.process("forgetful", forgetful, sim.kafka_bootstrap)
        sim.output("invoices")
        sim.faults()

    found = run_seed(scenario, 0).violations
    assert [each.kind for each in found] == ["TORN ACKNOWLEDGEMENT"] * 3


async def pass_on(bootstrap, source, target, pause_s):
    place = TopicPartition(source, 0)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=source)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=source,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    consumer.assign([place])
    async with producer, consumer:
        while True:
            record = await consumer.getone()
            await asyncio.sleep(pause_s)
            async with producer.transaction():
                await producer.send(target, record.value, key=record.key)
                offsets = {place: record.offset + 1}
                await producer.send_offsets_to_transaction(offsets, source)


def two_steps(pause_s: float) -> Any:
    def scenario(sim: Simulation):
        sim.broker(kafka_service_port=0)
        sim.input("orders", 4)
        sim.process("first", pass_on, sim.kafka_bootstrap, "orders", "checked", 0.0)
        sim.process("second", pass_on, sim.kafka_bootstrap, "checked", "invoices", pause_s)
        sim.output("invoices")
        if pause_s:
            sim.faults()

    return scenario


def test_what_is_between_two_steps_of_a_pipeline_is_waited_for():
    assert run_seed(two_steps(pause_s=5.0), 0).violations == ()


def test_an_answer_that_never_comes_is_waited_for():
    """Seed 5: a connection of the second step goes silent."""
    assert [run_seed(two_steps(pause_s=0.0), seed).violations for seed in (5,)] == [()]
