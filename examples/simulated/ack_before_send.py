"""WRONG: acknowledges an order before its invoice is stored. A crash in between loses it.

pybroker simulate examples/simulated/ack_before_send.py:scenario
"""

import asyncio

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
            await orders.acknowledge(order)  # "we have it now"
            await asyncio.sleep(0.05)  # asks another service for the price
            await invoices.send(b"invoice for " + order.data())


def scenario(sim: Simulation) -> None:
    sim.input("orders", 12)
    sim.process("billing", bill, sim.service_url)
    sim.output("invoices")
    sim.faults("crash")  # of the process only, which is enough
