"""Right: the row, the invoice and the acknowledgement are one commit.

python examples/database_once.py SERVICE_URL INPUT OUTPUT DATABASE
"""

import json
import sqlite3
import sys

from pybroker.client import Client, InitialPosition
from pybroker.client.database import recover, transaction

service_url, source, target, database = sys.argv[1:5]
connection = sqlite3.connect(database, timeout=30)
connection.execute("CREATE TABLE IF NOT EXISTS invoices (number TEXT)")
client = Client(service_url, enable_transaction=True)
recover(client, connection)
orders = client.subscribe(source, "billing", initial_position=InitialPosition.Earliest)
invoices = client.create_producer(target)

while True:
    order = orders.receive()
    number, key = json.loads(order.data())["id"], order.partition_key()
    with transaction(client, connection) as txn:
        connection.execute("INSERT INTO invoices VALUES (?)", (number,))
        invoices.send(json.dumps({"order": number}).encode(), partition_key=key, txn=txn)
        orders.acknowledge(order, txn=txn)
