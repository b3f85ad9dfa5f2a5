"""Wrong: the broker commits, then the database. A crash in between: the order is acknowledged, and
has no row.

python examples/topic_then_database.py SERVICE_URL INPUT OUTPUT DATABASE
"""

import json
import sqlite3
import sys

from pybroker.client import Client, InitialPosition

service_url, source, target, database = sys.argv[1:5]
connection = sqlite3.connect(database, timeout=30)
connection.execute("CREATE TABLE IF NOT EXISTS invoices (number TEXT)")
client = Client(service_url, enable_transaction=True)
orders = client.subscribe(source, "billing", initial_position=InitialPosition.Earliest)
invoices = client.create_producer(target)

while True:
    order = orders.receive()
    number, key = json.loads(order.data())["id"], order.partition_key()
    connection.execute("INSERT INTO invoices VALUES (?)", (number,))
    with client.new_transaction() as txn:
        invoices.send(json.dumps({"order": number}).encode(), partition_key=key, txn=txn)
        orders.acknowledge(order, txn=txn)
    connection.commit()
