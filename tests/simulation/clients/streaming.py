"""Traffic on a topic that is trimmed after consumption: its log is never read as a whole."""

from typing import Any

from checks.history import Outcome

from clients.plain import Process, subscribe, value_of
from pybroker.client.errors import Timeout


class StreamProducer(Process):
    """Sends each number once. Every durable subscription must receive what was confirmed."""

    def __init__(self, *args: Any, topic: str, count: int) -> None:
        super().__init__(*args)
        self.topic = topic
        self.left = count
        self.sent: dict[str, Outcome] = {}

    async def work(self, client: Any) -> None:
        producer = await client.create_producer(self.topic)
        while self.left:
            self.left -= 1
            value = f"{self.name}/{len(self.sent)}"
            self.sent[value] = Outcome.UNKNOWN
            await producer.send(value.encode() + b"|" + bytes(self.rng.choice((0, 400))))
            self.sent[value] = Outcome.DONE
            await self.pause(0.3)


class StreamConsumer(Process):
    """Acknowledges received messages: at once, or much later."""

    kind = "Exclusive"

    def __init__(self, *args: Any, topic: str, subscription: str, slow: bool) -> None:
        super().__init__(*args)
        self.topic = topic
        self.subscription = subscription
        self.slow = slow
        self.handed: dict[str, None] = {}  # in the order of first delivery

    async def work(self, client: Any) -> None:
        consumer = await subscribe(self, client, self.topic, self.subscription, self.kind)
        waiting: list[Any] = []
        while not self.stopping or waiting:
            try:
                message = await consumer.receive(timeout_millis=500)
            except Timeout:
                if self.stopping:
                    waiting.clear()
                continue
            self.handed[value_of(message)] = None
            waiting.append(message)
            if len(waiting) > (10 if self.slow else 0):
                await consumer.acknowledge(waiting.pop(0))
        await consumer.close()

    def missing(self, producer: StreamProducer) -> list[str]:
        return [
            value
            for value, outcome in producer.sent.items()
            if outcome is Outcome.DONE and value not in self.handed
        ]

    def violations(self) -> list[str]:
        numbers = [int(value.partition("/")[2]) for value in self.handed]
        if numbers != sorted(numbers):
            return [f"ORDER: {self.name} was handed {numbers}"]
        return []
