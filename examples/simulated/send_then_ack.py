"""WRONG: sends the invoice, then acknowledges the order, not in one transaction.

A crash in between bills the order twice.

    pybroker simulate examples/simulated/send_then_ack.py:scenario
"""

from pybroker.client.aio import Client, InitialPosition
from pybroker.simulation import Simulation


async def bill(service_url: str) -> None:
    async with Client(service_url) as client:
        invoices = await client.create_producer("invoices")
        orders = await client.subscribe(
            "orders", "billing", initial_position=InitialPosition.Earliest
        )
        while True:
            order = await orders.receive()
            await invoices.send(b"invoice for " + order.data())
            await orders.acknowledge(order)


def scenario(sim: Simulation) -> None:
    sim.input("orders", 12)
    sim.process("billing", bill, sim.service_url)
    sim.output("invoices")
