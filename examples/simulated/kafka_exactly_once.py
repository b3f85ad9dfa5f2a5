"""Bills orders exactly once with aiokafka: the invoice and the order's offset in one transaction.

    pybroker simulate examples/simulated/kafka_exactly_once.py:scenario --seeds 1000

The partition is assigned by hand: in a group, a rebalance in the middle of a transaction would go
back to the offset before it, because aiokafka does not tell the broker the member's generation
(KIP-447). The transactional id fences an earlier process, and ends what it left open, before the
consumer asks where to begin. An error ends the process, and the next one goes on.
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
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    orders.assign([ORDERS])
    async with invoices, orders:
        while True:
            order = await orders.getone()
            async with invoices.transaction():
                await invoices.send("invoices", b"invoice for " + order.value, key=order.key)
                await invoices.send_offsets_to_transaction({ORDERS: order.offset + 1}, GROUP)


def scenario(sim: Simulation) -> None:
    sim.broker(kafka_service_port=0)
    sim.input("orders", 12)
    sim.process("billing", bill, sim.kafka_bootstrap)
    sim.output("invoices")
