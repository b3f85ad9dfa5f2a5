"""Right: asyncio, several orders at a time, each with its invoice in one transaction.

The transactional id aborts what an earlier process left open, once the producer exists.

python examples/aio_transactions.py SERVICE_URL INPUT OUTPUT
"""

import asyncio
import json
import sys

from pybroker.client.aio import Client, Consumer, ConsumerType, InitialPosition, Producer

AT_A_TIME = 4


async def bill(client: Client, orders: Consumer, invoices: Producer) -> None:
    while True:
        order = await orders.receive()
        invoice = {"order": json.loads(order.data())["id"], "status": "billed"}
        async with await client.new_transaction() as txn:
            payload = json.dumps(invoice).encode()
            await invoices.send(payload, partition_key=order.partition_key(), txn=txn)
            await orders.acknowledge(order, txn=txn)


async def main(service_url: str, source: str, target: str) -> None:
    async with Client(service_url, transactional_id="billing") as client:
        invoices = await client.create_producer(target)
        orders = await client.subscribe(
            source,
            "billing",
            consumer_type=ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
        )
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_A_TIME):
                tasks.create_task(bill(client, orders, invoices))


asyncio.run(main(*sys.argv[1:4]))
