"""Publishes one input of a scenario, each message exactly once, whatever faults do.

A client sends again what the broker did not confirm, though it may be stored. So the publisher ends
when its connection is lost or a send fails. Its next life looks in the topic for what is there,
and continues behind it. Messages are numbered by their sequence ids.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from pybroker.base.errors import PulsarError
from pybroker.client import aio
from pybroker.simulation.declaring import InputSpec
from pybroker.simulation.judging import shown
from pybroker.simulation.node import Node
from pybroker.simulation.plan import ACTIVE_S
from pybroker.simulation.processes import said
from pybroker.simulation.recording import Recorder
from pybroker.simulation.world import World

_GAPS_S: Final = (0.0, 0.01, 0.1, 0.3)  # greatest gaps between two messages
_AGAIN_AFTER_S: Final = 0.5
_LOOKS: Final = 200  # for a subscription
_LOOK_EVERY_S: Final = 0.05
_LOOKS_FOR_DURABLE: Final = 10  # once there is a reader
# Longer than the network or the disk stalls: what was sent is answered, or its connection is lost.
_TIMEOUT_S: Final = 300
_ANSWERED_AFTER_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Topics:
    """What the publisher sees of the broker."""

    service_url: str
    parts: Callable[[str], Iterable[str]]  # full names of the topic's partitions, or its own
    subscribed: Callable[[str], Any]  # truthy: there is a durable subscription
    read: Callable[[str], Any]  # truthy: there is a subscription, maybe a reader's


class _PublishingNode(Node):
    """Ends instead of connecting again, once it has sent something."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, world.network, name)
        self.sending = False
        self.on_end: Callable[[], None] = lambda: None

    async def create_connection(self, *arguments: Any, **options: Any) -> Any:
        if not self.sending:
            return await super().create_connection(*arguments, **options)
        self.on_end()
        return await self.create_future()


class Publisher:
    def __init__(
        self, world: World, name: str, given: InputSpec, topics: Topics, recorder: Recorder
    ) -> None:
        self.refused = ""  # why it could not go on the last time
        self.done = False
        self.began: Callable[[], None] = lambda: None
        self._world = world
        self._name = name
        self._given = given
        self._topics = topics
        self._recorder = recorder
        self._rng: random.Random = world.stream(name)
        self._lives = 0
        self._next = 0  # all messages before this one are in the topic
        self._node: _PublishingNode | None = None

    def start(self) -> None:
        """Publishes once the topic has a subscription, so that no message precedes it."""
        self._world.node(self._name).start(self._wait(), self._name)

    async def _wait(self) -> None:
        topic, looks = self._given.topic, 0
        for _ in range(_LOOKS):
            looks += bool(self._topics.read(topic))
            if self._topics.subscribed(topic) or looks > _LOOKS_FOR_DURABLE:
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        self.began()
        self._live()

    # --- lives

    def _live(self) -> None:
        self._lives += 1
        name = f"{self._name}.{self._lives}"
        node = self._node = self._world.add(_PublishingNode(self._world, name))  # type: ignore[abstract]
        node.on_end = self._end
        node.start(self._publish(node), name)

    def broker_starts(self) -> None:
        """Nothing that was sent before is stored from now on."""
        if self._node is not None and self._node.sending:
            self._end(_AGAIN_AFTER_S)

    def _end(self, again_after_s: float = _ANSWERED_AFTER_S) -> None:
        """Ends this life; begins another one when what this one sent is stored or lost."""
        node = self._node
        if node is not None and not node.dead and not self.done:
            stalled_s = max(0.0, self._world.network.stalled_until - self._world.now)
            self._world.after(0.0, node.crash)
            self._world.after(stalled_s + again_after_s, self._again, node)

    def _again(self, node: Node) -> None:
        if self._node is node and not self.done:
            self._live()

    # --- one life

    async def _publish(self, node: _PublishingNode) -> None:
        client = aio.Client(self._topics.service_url, operation_timeout_seconds=_TIMEOUT_S)
        try:
            if self._lives > 1 and not self._given.duplicates:
                await self._look(client)
            producer = await client.create_producer(self._given.topic, producer_name=self._name)
            node.sending = not self._given.duplicates
            await self._send_rest(producer)
        except PulsarError as error:
            self.refused = f": {self._given.topic}: {said(error)}"
            self._end(_ANSWERED_AFTER_S if node.sending else _AGAIN_AFTER_S)
            return
        self.done = True
        with contextlib.suppress(PulsarError):  # the broker is gone, and will notice by itself
            await client.close()

    async def _look(self, client: aio.Client) -> None:
        """Looks how many messages are in the topic."""
        for part in self._topics.parts(self._given.topic):
            reader = await client.create_reader(part, aio.MessageId.earliest)
            while await reader.has_message_available():
                message = await reader.read_next(timeout_millis=1000 * _TIMEOUT_S)
                if message.producer_name() == self._name and message.sequence_id() >= self._next:
                    self._is_stored(message.sequence_id())
            await reader.close()

    async def _send_rest(self, producer: aio.Producer) -> None:
        messages = self._given.messages
        gap_s = self._rng.choice((*_GAPS_S, 2 * ACTIVE_S / len(messages)))
        while self._next < len(messages):
            key, data = messages[self._next]
            await producer.send(data, partition_key=key or None, sequence_id=self._next)
            self._is_stored(self._next)
            await asyncio.sleep(gap_s * self._rng.random())

    def _is_stored(self, number: int) -> None:
        _, data = self._given.messages[number]
        text = f"{shown(data)} is in {self._given.topic}"
        self._recorder.tell("input", text, shown(data))
        self.refused = ""
        self._next = number + 1
