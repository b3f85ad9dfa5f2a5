"""Bills orders with aiokafka: the invoice in a transaction, offsets every five seconds, as
consumers commit by default. After a crash in between orders are billed twice.

    pybroker simulate examples/simulated/kafka_auto_commit.py:scenario
"""

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from pybroker.simulation import Simulation

GROUP = "billing"
ORDERS = TopicPartition("orders", 0)


async def bill(bootstrap: str) -> None:
    invoices = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=GROUP)
    orders = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=True,
        isolation_level="read_committed",
    )
    orders.assign([ORDERS])
    async with invoices, orders:
        while True:
            order = await orders.getone()
            async with invoices.transaction():
                await invoices.send("invoices", b"invoice for " + order.value, key=order.key)


def scenario(sim: Simulation) -> None:
    sim.broker(kafka_service_port=0)
    sim.input("orders", 12)
    sim.process("billing", bill, sim.kafka_bootstrap)
    sim.output("invoices")
