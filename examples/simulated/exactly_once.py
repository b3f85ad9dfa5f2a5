"""Bills orders exactly once, and each customer's orders in sequence.

The invoice and the acknowledgement are in one transaction. The transactional id aborts what an
earlier process left open, once the producer exists. So the producer is created before the
subscription. Otherwise a later order could be billed while an open transaction holds an earlier
one.

    pybroker simulate examples/simulated/exactly_once.py:scenario --seeds 1000
"""

from pybroker.client.aio import Client, InitialPosition
from pybroker.simulation import Simulation


async def bill(service_url: str) -> None:
    async with Client(service_url, transactional_id="billing") as client:
        invoices = await client.create_producer("invoices")
        orders = await client.subscribe(
            "orders", "billing", initial_position=InitialPosition.Earliest
        )
        while True:
            order = await orders.receive()
            async with await client.new_transaction() as txn:
                await invoices.send(b"invoice for " + order.data(), txn=txn)
                await orders.acknowledge(order, txn=txn)


def scenario(sim: Simulation) -> None:
    sim.input("orders", 12)
    sim.process("billing", bill, sim.service_url)
    sim.output("invoices")
