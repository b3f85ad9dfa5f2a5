"""The plain client processes of a simulation, each with one job for the asyncio client.

A process may crash at any moment and restarts on a new node. It has forgotten its work then, but
the history has not. After an unexpected error of the client, the job begins again with a new
client, as under a supervisor.
"""

import asyncio
import random
from typing import Any

from checks.history import History, Outcome, Read, Receiver, Sent, Session
from sim_world import ClientsWorld

from pybroker.base import errors
from pybroker.client import aio
from pybroker.client.errors import PulsarException, Timeout
from pybroker.simulation.node import Node
from pybroker.simulation.world import SimulatedClock

REFUSALS = (errors.InvalidTxnStatus, errors.TransactionNotFound)


def new_client(world: ClientsWorld, rng: random.Random, **options: Any) -> Any:
    """Call it on the node where the client is to live."""
    return aio.Client(
        world.service_url,
        operation_timeout_seconds=10,
        enable_transaction=True,
        clock=SimulatedClock(world),
        rng=rng,
        **options,
    )


class Process:
    """A job on a node; `finished` once the job has returned."""

    def __init__(self, world: ClientsWorld, history: History, name: str) -> None:
        self.world = world
        self.history = history
        self.name = name
        self.rng: random.Random = world.stream(f"client {name}")
        self.incarnation = 0
        self.finished = False
        self.stopping = False  # take no new work; finish the current one
        self.session: Session | None = None  # with a transactional id, if it has one
        self.node: Node | None = None

    def start(self) -> None:
        self.incarnation += 1
        self.node = self.world.node(f"{self.name}.{self.incarnation}")
        self.node.start(self._main())

    def crash(self, down_s: float) -> None:
        if self.node is None or self.node.dead or self.finished:
            return  # it would come to life twice
        self.node.crash()
        self.note("crashed")
        self.world.after(down_s, self.start)

    def note(self, what: str) -> None:
        self.history.notes.append(f"{self.world.now:9.4f} {self.name}.{self.incarnation} {what}")

    async def _main(self) -> None:
        while not self.finished:
            client = self.new_client()
            try:
                await self.work(client)
                self.finished = True
            except (PulsarException, errors.PulsarError) as error:
                self.note(f"begins again: {error!r}")
            await _close(client)
            await self.pause(0.5)
        self.note("finished")

    def new_client(self) -> Any:
        return new_client(self.world, self.rng)

    async def work(self, client: Any) -> None:
        raise NotImplementedError

    async def pause(self, longest_s: float) -> None:
        await asyncio.sleep(longest_s * self.rng.random())

    async def send(self, producer: Any, sent: Sent, txn: Any = None, **options: Any) -> None:
        """Raises the client's error, after recording its meaning."""
        data = sent.value.encode() + b"|" + bytes(self.rng.choice((0, 10, 700)))
        if sent.asked is None:
            sent.asked, sent.session = self.history.turn(), self.session
        elif sent.session is not self.session:
            sent.session = None  # it is unknown which of the two was answered
        try:
            await producer.send(data, txn=txn, **options)
            sent.outcome, sent.answered = Outcome.DONE, self.history.turn()
        except REFUSALS:
            sent.outcome = Outcome.REFUSED
            raise


async def _close(client: Any) -> None:
    try:
        await client.close()
    except (PulsarException, errors.PulsarError):
        return  # the broker is gone; it will notice


def value_of(message: Any) -> str:
    return message.data().partition(b"|")[0].decode()


def read_of(message: Any) -> Read:
    published_ms = message.publish_timestamp()
    return Read(message.topic_name(), message.order_key, value_of(message), published_ms)


class PlainProducer(Process):
    """Sends numbered messages, several at a time; with deduplication until each is confirmed."""

    def __init__(self, *args: Any, topic: str, count: int, dedup: bool, batching: bool) -> None:
        super().__init__(*args)
        self.topic = topic
        # A batch that overlaps an earlier one is no duplicate, and a resend forms new batches.
        self.batching = batching and not dedup
        self.dedup = dedup
        self.waiting = [self._message(number) for number in range(count)]

    def _message(self, number: int) -> Sent:
        value = f"{self.name}/{number}"
        return Sent(value, self.topic, self.name, number, deduplicated=self.dedup)

    async def work(self, client: Any) -> None:
        producer = await client.create_producer(
            self.topic,
            producer_name=self.name if self.dedup else None,
            batching_enabled=self.batching,
            batching_max_messages=3,
        )
        while self.waiting:
            group = self.waiting[: self.rng.randint(1, 5)]
            await self._send_group(producer, group)
            await self.pause(0.5)
        await producer.close()

    async def _send_group(self, producer: Any, group: list[Sent]) -> None:
        """Without deduplication a message is sent once: a second attempt might duplicate it."""
        if not self.dedup:
            del self.waiting[: len(group)]
        for sent in group:
            self.history.sent[sent.value] = sent
        results = await asyncio.gather(
            *(self._send_one(producer, sent) for sent in group), return_exceptions=True
        )
        self.waiting = [s for s in self.waiting if s.outcome is not Outcome.DONE]
        for error in results:
            if isinstance(error, BaseException):
                raise error

    async def _send_one(self, producer: Any, sent: Sent) -> None:
        options: dict[str, Any] = {"partition_key": f"key-{sent.number % 3}"}
        if self.dedup:
            options["sequence_id"] = sent.number
        await self.send(producer, sent, **options)


class PlainConsumer(Process):
    """Receives, records and acknowledges, one by one or cumulatively, until it is stopped."""

    def __init__(self, *args: Any, topic: str, subscription: str, kind: str) -> None:
        super().__init__(*args)
        self.topic = topic
        self.subscription = subscription
        self.kind = kind
        self.cumulative = kind in ("Exclusive", "Failover") and self.rng.random() < 0.5

    async def work(self, client: Any) -> None:
        consumer = await subscribe(self, client, self.topic, self.subscription, self.kind)
        receiver = self.history.receiver(f"{self.name}.{self.incarnation}", self.subscription)
        while not self.stopping:
            message = await receive(self.history, consumer, receiver)
            if message is not None:
                await self._answer(consumer, message)
        await consumer.close()

    async def _answer(self, consumer: Any, message: Any) -> None:
        if self.cumulative:
            if self.rng.random() < 0.5:
                await consumer.acknowledge_cumulative(message)
        elif self.rng.random() < 0.1:
            consumer.negative_acknowledge(message)
        else:
            await consumer.acknowledge(message)


class LiveReader(Process):
    """Reads one topic from its start continuously: observes what is visible when."""

    def __init__(self, *args: Any, topic: str) -> None:
        super().__init__(*args)
        self.topic = topic

    async def work(self, client: Any) -> None:
        reader = await client.create_reader(self.topic, aio.MessageId.earliest)
        receiver = self.history.receiver(f"{self.name}.{self.incarnation}")
        while not self.stopping:
            try:
                message = await reader.read_next(timeout_millis=1000)
            except Timeout:
                continue
            self.history.hand(receiver, read_of(message))
        await reader.close()


async def subscribe(
    process: Process, client: Any, topic: str, name: str, kind: str, **options: Any
) -> Any:
    return await client.subscribe(
        topic,
        name,
        consumer_type=getattr(aio.ConsumerType, kind),
        initial_position=aio.InitialPosition.Earliest,
        consumer_name=process.name,
        receiver_queue_size=process.rng.choice((1, 3, 100)),
        negative_ack_redelivery_delay_ms=300,
        **options,
    )


async def receive(
    history: History, consumer: Any, receiver: Receiver, timeout_millis: int = 1000
) -> Any:
    """The next message, recorded; None if none comes in time."""
    message = await receive_one(consumer, timeout_millis)
    if message is not None:
        history.hand(receiver, read_of(message))
    return message


async def receive_one(consumer: Any, timeout_millis: int = 1000) -> Any:
    """The next message; None if none comes in time."""
    try:
        return await consumer.receive(timeout_millis=timeout_millis)
    except Timeout:
        return None
