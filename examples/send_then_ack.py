"""WRONG: sends, then acknowledges. A crash between the two makes a duplicate.

python examples/send_then_ack.py SERVICE_URL INPUT OUTPUT
"""

import json
import sys

import pulsar

service_url, source, target = sys.argv[1:4]
client = pulsar.Client(service_url)
orders = client.subscribe(source, "billing", initial_position=pulsar.InitialPosition.Earliest)
invoices = client.create_producer(target)

while True:
    order = orders.receive()
    invoice = {"order": json.loads(order.data())["id"], "status": "billed"}
    invoices.send(json.dumps(invoice).encode(), partition_key=order.partition_key())
    # Killed here, it sends this invoice again after its restart.
    orders.acknowledge(order)
