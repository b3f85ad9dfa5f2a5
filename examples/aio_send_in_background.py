"""WRONG: sends in a separate task, and acknowledges at once, to be fast.

A crash before the task has sent loses the invoice.

python examples/aio_send_in_background.py SERVICE_URL INPUT OUTPUT
"""

import asyncio
import json
import sys

from pybroker.client.aio import Client, InitialPosition


async def main(service_url: str, source: str, target: str) -> None:
    async with Client(service_url) as client:
        invoices = await client.create_producer(target)
        orders = await client.subscribe(
            source, "billing", initial_position=InitialPosition.Earliest
        )
        async with asyncio.TaskGroup() as sending:
            while True:
                order = await orders.receive()
                invoice = {"order": json.loads(order.data())["id"], "status": "billed"}
                payload = json.dumps(invoice).encode()
                sending.create_task(invoices.send(payload, partition_key=order.partition_key()))
                # Killed after this, before the invoice is stored, it never sends the invoice.
                await orders.acknowledge(order)


asyncio.run(main(*sys.argv[1:4]))
