"""Wrong pipelines whose errors need a fault in the middle of a command: each is found in time."""

import pytest

from pybroker.client import PulsarException
from pybroker.client.aio import Client, ConsumerType, InitialPosition
from pybroker.simulation import run_seed
from pybroker.simulation.coverage import Coverage

MOST_SEEDS = 200


async def opened(service_url, consumer_type=ConsumerType.Exclusive, **options):
    client = Client(service_url, **options)
    invoices = await client.create_producer("invoices")
    orders = await client.subscribe(
        "orders", "billing", consumer_type, initial_position=InitialPosition.Earliest
    )
    return client, invoices, orders


async def send(invoices, order, txn):
    await invoices.send(order.data(), partition_key=order.partition_key(), txn=txn)


async def nack_with_an_open_transaction(service_url):
    """The order is billed again, behind later ones, once the forgotten transaction times out."""
    client, invoices, orders = await opened(service_url)
    while True:
        order = await orders.receive()
        txn = await client.new_transaction()
        try:
            await send(invoices, order, txn)
            await orders.acknowledge(order, txn)
            await txn.commit()
        except PulsarException:
            orders.negative_acknowledge(order)


async def swallowed_conflict(service_url):
    """Nobody bills the order again: this consumer has it, and does nothing."""
    client, invoices, orders = await opened(service_url, transactional_id="billing")
    while True:
        order = await orders.receive()
        try:
            async with await client.new_transaction() as txn:
                await send(invoices, order, txn)
                await orders.acknowledge(order, txn)
        except PulsarException:
            continue


async def commit_retried_under_a_new_transaction(service_url):
    """An unknown outcome is taken for an abort."""
    client, invoices, orders = await opened(
        service_url, transactional_id="billing", operation_timeout_seconds=3
    )
    while True:
        order = await orders.receive()
        txn = await client.new_transaction()
        await send(invoices, order, txn)
        await orders.acknowledge(order, txn)
        while True:
            try:
                await txn.commit()
                break
            except PulsarException:
                txn = await client.new_transaction()
                await send(invoices, order, txn)


async def writer_without_transactional_id(service_url):
    """The other writer bills later orders of the customer while a dead one's transaction is open.

    So an order is billed behind its successor.
    """
    client, invoices, orders = await opened(service_url, ConsumerType.Failover)
    while True:
        order = await orders.receive()
        async with await client.new_transaction() as txn:
            await send(invoices, order, txn)
            await orders.acknowledge(order, txn)


async def right_writer(service_url, name="billing"):
    client, invoices, orders = await opened(service_url, ConsumerType.Shared, transactional_id=name)
    while True:
        order = await orders.receive()
        async with await client.new_transaction() as txn:
            await send(invoices, order, txn)
            await orders.acknowledge(order, txn)


def billing(work, writers=1, ordered=False):
    def scenario(sim):
        sim.input("orders", 12)
        for number in range(writers):
            sim.process(f"writer-{number}", work, sim.service_url)
        sim.output("invoices", ordered=ordered)

    return scenario


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "kind"),
    [
        (billing(nack_with_an_open_transaction, ordered=True), "ORDER"),
        (billing(swallowed_conflict), "LOST"),
        (billing(commit_retried_under_a_new_transaction), "DOUBLED"),
        (billing(writer_without_transactional_id, writers=2, ordered=True), "ORDER"),
    ],
    ids=["nack", "swallowed", "retried", "writers"],
)
def test_a_wrong_pipeline_is_found(scenario, kind):
    outcomes = (run_seed(scenario, seed) for seed in range(MOST_SEEDS))
    assert kind in {found.kind for outcome in outcomes for found in outcome.violations[:1]}


@pytest.mark.slow
def test_right_writers_are_right_under_every_kind_of_fault():
    """Each kind meets their work."""

    def scenario(sim):
        sim.input("orders", 12)
        for name in ("left", "right"):
            sim.process(name, right_writer, sim.service_url, name)
        sim.output("invoices", ordered=False)

    coverage = Coverage()
    for seed in range(MOST_SEEDS):
        outcome = run_seed(scenario, seed)
        assert outcome.violations == ()
        coverage.add(outcome)
    assert set(coverage.met) == set(coverage.allowed)
