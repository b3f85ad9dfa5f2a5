"""WRONG: remembers for a minute which orders were billed, and skips redelivered ones.

The process keeps this in memory, so a crash forgets it.

    pybroker simulate examples/simulated/dedup_by_memory.py:scenario
"""

import time

from pybroker.client.aio import Client, InitialPosition
from pybroker.simulation import Simulation

REMEMBER_S = 60.0


async def bill(service_url: str) -> None:
    billed: dict[bytes, float] = {}
    async with Client(service_url) as client:
        invoices = await client.create_producer("invoices")
        orders = await client.subscribe(
            "orders", "billing", initial_position=InitialPosition.Earliest
        )
        while True:
            order = await orders.receive()
            if time.time() - billed.get(order.data(), 0.0) > REMEMBER_S:
                await invoices.send(b"invoice for " + order.data())
                billed[order.data()] = time.time()
            await orders.acknowledge(order)


def scenario(sim: Simulation) -> None:
    sim.input("orders", 12)
    sim.process("billing", bill, sim.service_url)
    sim.output("invoices")
