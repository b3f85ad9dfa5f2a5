"""Right: the invoice, the ledger's entry and the acknowledgement are in one transaction.

python examples/transactions.py SERVICE_URL INPUT INVOICES LEDGER
"""

import json
import sys

from pybroker.client import Client, InitialPosition

service_url, source, invoices_topic, ledger_topic = sys.argv[1:5]
client = Client(service_url, enable_transaction=True)
orders = client.subscribe(source, "billing", initial_position=InitialPosition.Earliest)
invoices = client.create_producer(invoices_topic)
ledger = client.create_producer(ledger_topic)

while True:
    order = orders.receive()
    number, key = json.loads(order.data())["id"], order.partition_key()
    with client.new_transaction(timeout_ms=60_000) as txn:
        invoice = {"order": number, "status": "billed"}
        invoices.send(json.dumps(invoice).encode(), partition_key=key, txn=txn)
        ledger.send(json.dumps({"debit": number}).encode(), partition_key=key, txn=txn)
        orders.acknowledge(order, txn=txn)
