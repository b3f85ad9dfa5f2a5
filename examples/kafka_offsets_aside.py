"""Wrong: the invoice is in a transaction, but the order's offset is committed after it.

python examples/kafka_offsets_aside.py BOOTSTRAP INPUT INVOICES
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
    producer.commit_transaction()
    orders.commit(order, asynchronous=False)
