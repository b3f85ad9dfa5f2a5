"""WRONG: drops a message as a duplicate if it saw the message within the last minute.

The ids are in SQLite, so they survive a crash. But if it crashes after noting a message and before
sending the invoice, the message is redelivered within the minute, dropped, and never billed.

python examples/dedup_by_time.py SERVICE_URL INPUT OUTPUT DIRECTORY
"""

import json
import sqlite3
import sys
import time

import pulsar

service_url, source, target, directory = sys.argv[1:5]
client = pulsar.Client(service_url)
orders = client.subscribe(source, "billing", initial_position=pulsar.InitialPosition.Earliest)
invoices = client.create_producer(target)
seen = sqlite3.connect(f"{directory}/seen.db", isolation_level=None)
seen.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY, at REAL)")


def is_new(number: str) -> bool:
    seen.execute("DELETE FROM seen WHERE at < ?", (time.time() - 60,))
    added = seen.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (number, time.time()))
    return added.rowcount == 1


while True:
    order = orders.receive()
    number = json.loads(order.data())["id"]
    if is_new(number):
        # Killed here, it never sends this invoice.
        invoice = {"order": number, "status": "billed"}
        invoices.send(json.dumps(invoice).encode(), partition_key=order.partition_key())
    orders.acknowledge(order)
