"""Messages for tests that need any messages."""

from pybroker.client import Client


def publish(client: Client, topic: str, count: int) -> None:
    """Publish b"0", b"1" … to tenant/namespace/topic, one per entry; the producer stays open."""
    producer = client.create_producer(f"persistent://{topic}")
    for number in range(count):
        producer.send(b"%d" % number)
