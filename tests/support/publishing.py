"""Messages for tests that need some, whatever they say."""

from pybroker.client import Client


def publish(client: Client, topic: str, count: int) -> None:
    """b"0", b"1" … to tenant/namespace/topic, an entry each; the producer stays with the client."""
    producer = client.create_producer(f"persistent://{topic}")
    for number in range(count):
        producer.send(b"%d" % number)
