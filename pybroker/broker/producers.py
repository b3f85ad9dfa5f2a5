"""The producers of one topic: who may write, under which access mode, and who waits.

Access modes: any number of Shared producers, or one exclusive one. A producer
that asked for WaitForExclusive queues; one with ExclusiveWithFencing drives all others out. The
topic epoch counts exclusive owners; a producer that comes back with an older epoch was fenced.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from pybroker.errors import ProducerBusy, ProducerFenced


class AccessMode(IntEnum):
    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class ProducerOwner(Protocol):
    """The connection a producer lives on."""

    def close_producer(self, producer: "Producer", reason: str) -> None: ...


@dataclass(slots=True, eq=False)
class Producer:
    producer_id: int
    name: str
    owner: ProducerOwner
    access_mode: AccessMode = AccessMode.SHARED
    epoch: int = 0  # counts the client's reconnects of this producer
    user_provided_name: bool = True
    topic_epoch: int | None = None
    address: str = ""
    client_version: str = ""
    connected_since_ms: int = 0
    fenced: bool = False
    messages_in: int = 0
    bytes_in: int = 0

    @property
    def exclusive(self) -> bool:
        return self.access_mode is not AccessMode.SHARED


class Producers:
    """`store_epoch` makes a new topic epoch durable before its owner hears of it."""

    def __init__(
        self, topic: str, epoch: int | None, store_epoch: Callable[[int], Awaitable[None]]
    ) -> None:
        self._topic = topic
        self._store_epoch = store_epoch
        self._connected: dict[str, Producer] = {}
        self._waiting: deque[tuple[Producer, Callable[[], None]]] = deque()
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._connected)

    def all(self) -> list[Producer]:
        return list(self._connected.values())

    @property
    def _owned(self) -> bool:
        """An exclusive producer is the only one, so the first tells for all."""
        first = next(iter(self._connected.values()), None)
        return first is not None and first.exclusive

    async def add(self, producer: Producer, granted: Callable[[], None]) -> bool:
        """True if it may write now; False if it waits, and `granted` will be called.

        Raises ProducerBusy, ProducerFenced.
        """
        self._replace_older(producer)
        if not producer.exclusive:
            if self._owned or self._waiting:
                raise ProducerBusy(f"{self._topic} has an exclusive producer")
            producer.topic_epoch = self.epoch
            self._connected[producer.name] = producer
            return True
        self._refuse_older_epoch(producer)
        if producer.access_mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            self._fence_all("a newer exclusive producer took the topic over")
        elif self._connected:
            if producer.access_mode is AccessMode.EXCLUSIVE:
                raise ProducerFenced(f"{self._topic} already has a producer")
            self._waiting.append((producer, granted))
            return False
        await self._own(producer)
        return True

    async def remove(self, producer: Producer) -> None:
        """Idempotent; lets the next waiting producer in."""
        if self._connected.get(producer.name) is producer:
            del self._connected[producer.name]
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not producer)
        if self._waiting and not self._connected:
            successor, granted = self._waiting.popleft()
            await self._own(successor)
            if self._connected.get(successor.name) is successor:
                granted()

    def disconnect_all(self, reason: str) -> None:
        for producer in [*self._connected.values(), *(p for p, _ in self._waiting)]:
            producer.owner.close_producer(producer, reason)
        self._connected.clear()
        self._waiting.clear()

    async def _own(self, producer: Producer) -> None:
        self._connected[producer.name] = producer
        self.epoch = 0 if self.epoch is None else self.epoch + 1
        producer.topic_epoch = self.epoch
        await self._store_epoch(self.epoch)

    def _replace_older(self, producer: Producer) -> None:
        """A client that reconnects may be faster than the news that its old connection is dead."""
        older = self._connected.get(producer.name)
        if older is None:
            return
        if older.owner is not producer.owner and producer.epoch <= older.epoch:
            raise ProducerBusy(
                f"A producer named {producer.name} is already connected to {self._topic}; "
                "choose another name or close it"
            )
        del self._connected[producer.name]
        older.fenced = True
        if older.owner is not producer.owner:
            older.owner.close_producer(older, "replaced by its own reconnection")

    def _refuse_older_epoch(self, producer: Producer) -> None:
        asked, now = producer.topic_epoch, self.epoch
        if asked is not None and now is not None and asked < now:
            raise ProducerFenced(
                f"{self._topic} is at epoch {now}; a producer of epoch {asked} was fenced"
            )

    def _fence_all(self, reason: str) -> None:
        fenced = [*self._connected.values(), *(p for p, _ in self._waiting)]
        self._connected.clear()
        self._waiting.clear()
        for producer in fenced:
            producer.fenced = True
            producer.owner.close_producer(producer, reason)
