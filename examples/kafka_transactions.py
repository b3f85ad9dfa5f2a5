"""Right: the invoice and the order's offset are in one transaction.

python examples/kafka_transactions.py BOOTSTRAP INPUT INVOICES
"""

import json
import sys

from confluent_kafka import Consumer, Producer

bootstrap, source, invoices = sys.argv[1:4]
billing = {
    "group.id": "billing",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "session.timeout.ms": 6000,
}
# Without it, librdkafka 2.16 waits for ever for its group's coordinator after a broker's restart.
recovery = {"metadata.recovery.strategy": "none"}
orders = Consumer({"bootstrap.servers": bootstrap} | recovery | billing)
orders.subscribe([source])
billed = {"transactional.id": "billing"} | recovery
producer = Producer({"bootstrap.servers": bootstrap} | billed)
producer.init_transactions()

while True:
    order = orders.poll(1)
    if order is None:
        continue
    number = json.loads(order.value())["id"]
    producer.begin_transaction()
    producer.produce(invoices, json.dumps({"order": number, "status": "billed"}), order.key())
    offsets = orders.position(orders.assignment())
    producer.send_offsets_to_transaction(offsets, orders.consumer_group_metadata())
    producer.commit_transaction()
