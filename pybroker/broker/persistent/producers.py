"""The producers of one topic: connected and waiting ones, and their access modes.

Access modes: any number of Shared producers, or one exclusive one. A producer that asked for
WaitForExclusive queues; one with ExclusiveWithFencing fences all others. The topic epoch counts
exclusive owners; a producer that reconnects with an older epoch was fenced.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Protocol

from pybroker.base.errors import (
    PersistenceError,
    ProducerBusy,
    ProducerFenced,
    PulsarError,
    ServiceNotReady,
)
from pybroker.base.runtime import do_nothing

log = logging.getLogger(__name__)


class AccessMode(IntEnum):
    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class ProducerState(Enum):
    """In the order of a producer's life; the values complete a sentence."""

    WAITING = "waits for exclusive access"
    WRITING = "may write"
    FENCED = "was fenced"


class ProducerOwner(Protocol):
    """The connection of a producer."""

    def close_producer(self, producer: "Producer", reason: str) -> None:
        """Tell the client that the broker has closed the producer; it may reconnect."""
        ...


# Called once for a waiting producer: with None when it may write, or with the reason why it never
# will.
Granted = Callable[[PulsarError | None], None]


@dataclass(slots=True, eq=False)
class Producer:
    producer_id: int
    name: str
    owner: ProducerOwner
    access_mode: AccessMode = AccessMode.SHARED
    epoch: int = 0  # counts the client's reconnects of this producer
    user_provided_name: bool = True
    encrypts: bool = False
    topic_epoch: int | None = None
    session_epoch: int = 0  # of its transactional id; 0: it has none
    address: str = ""
    client_version: str = ""
    supports_partial: bool = False  # its client supports producers for some partitions only
    properties: Mapping[str, str] = field(default_factory=dict)
    connected_since_ms: int = 0
    state: ProducerState = ProducerState.WAITING
    granted: Granted | None = None  # while it waits in line
    messages_in: int = 0
    bytes_in: int = 0
    chunks_in: int = 0

    @property
    def exclusive(self) -> bool:
        return self.access_mode is not AccessMode.SHARED


async def _too_late(epoch: int) -> None:
    raise ServiceNotReady("The topic is no longer loaded: look it up again")


class Producers:
    """`store_epoch` makes a new topic epoch durable before its owner is told."""

    __slots__ = (
        "_closed",
        "_connected",
        "_store_epoch",
        "_topic",
        "_waiting",
        "epoch",
        "on_deserted",
    )

    def __init__(
        self, topic: object, epoch: int | None, store_epoch: Callable[[int], Awaitable[None]]
    ) -> None:
        self._topic = topic
        self._store_epoch = store_epoch
        self._connected: dict[str, Producer] = {}
        self._waiting: list[Producer] = []  # nearly always empty
        self._closed: PulsarError | None = None
        self.on_deserted: Callable[[], None] = do_nothing  # called when the last one has left
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._connected)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def all(self) -> list[Producer]:
        return list(self._connected.values())

    async def add(self, producer: Producer, granted: Granted) -> bool:
        """Admit a producer. True if it may write now; False if it waits, and `granted` will be
        called. Raises ProducerBusy, ProducerFenced, ServiceNotReady.
        """
        self._check_open()
        self._replace_older(producer)
        if not producer.exclusive:
            self._add_shared(producer)
            return True
        self._refuse_older_epoch(producer)
        if producer.access_mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            self._fence_all("a newer exclusive producer took over the topic")
        elif self._connected:
            if producer.access_mode is AccessMode.EXCLUSIVE:
                raise ProducerFenced(f"{self._topic} already has a producer")
            producer.granted = granted
            self._waiting.append(producer)
            return False
        try:
            owns = await self._own(producer)
        except Exception:
            await self.let_next_in()  # producers that arrived meanwhile have waited for this one
            raise
        if not owns:
            self._check_open()
            raise ProducerFenced(f"{self._topic}: another exclusive producer fenced this one")
        return True

    async def remove(self, producer: Producer) -> None:
        """Idempotent; lets the next waiting producer in."""
        self._forget(producer)
        await self.let_next_in()

    async def let_next_in(self) -> None:
        """If no producer is connected, admit the first waiting one that can still be admitted."""
        while self._waiting and not self._connected:
            successor = self._waiting.pop(0)
            try:
                if await self._own(successor):
                    self._tell(successor, None)
            except Exception as error:
                log.warning("%s: producer %s rejected: %s", self._topic, successor.name, error)

    def disconnect_all(self, reason: PulsarError) -> None:
        """Disconnect all producers, and refuse new ones with the reason from now on."""
        self._closed = reason
        self.disconnect(reason)

    def disconnect(self, reason: PulsarError) -> None:
        """Disconnect all producers; a waiting one gets the reason as the answer to its request."""
        self.close(self.everybody(), reason)

    def close(self, producers: Iterable[Producer], reason: PulsarError) -> None:
        """Like `disconnect`, only these. It does nothing for one that has left."""
        for producer in producers:
            self._forget(producer)
            if not self._tell(producer, reason):
                producer.owner.close_producer(producer, str(reason))

    def topic_ended(self) -> None:
        """Call last: drops all references back to the topic."""
        self.on_deserted = do_nothing
        self._store_epoch = _too_late

    def _check_open(self) -> None:
        if self._closed is not None:
            # A new instance: the traceback stays attached to it.
            raise type(self._closed)(*self._closed.args)

    def everybody(self) -> list[Producer]:
        """All producers, including waiting ones."""
        return [*self._connected.values(), *self._waiting]

    def _forget(self, producer: Producer) -> None:
        if self._connected.get(producer.name) is producer:
            del self._connected[producer.name]
            if not self._connected:
                self.on_deserted()
        if self._waiting:
            self._waiting = [waiter for waiter in self._waiting if waiter is not producer]

    def _add_shared(self, producer: Producer) -> None:
        first = next(iter(self._connected.values()), None)
        if self._waiting or (first is not None and first.exclusive):
            raise ProducerBusy(f"{self._topic} has an exclusive producer")
        producer.topic_epoch = self.epoch
        producer.state = ProducerState.WRITING
        self._connected[producer.name] = producer

    async def _own(self, producer: Producer) -> bool:
        """Make the producer the exclusive owner. False if it was fenced, or left, before its epoch
        was durable.
        """
        self._connected[producer.name] = producer
        self.epoch = 0 if self.epoch is None else self.epoch + 1
        producer.topic_epoch = self.epoch
        try:
            await self._store_epoch(self.epoch)
        except BaseException:
            self._drop(producer, PersistenceError(f"{self._topic}: its epoch could not be stored"))
            raise
        if self._connected.get(producer.name) is not producer:
            return False
        producer.state = ProducerState.WRITING
        return True

    def _replace_older(self, producer: Producer) -> None:
        """A client may reconnect before the broker notices that its old connection is dead."""
        older = self._named(producer.name)
        if older is None:
            return
        if producer.epoch <= older.epoch:
            raise ProducerBusy(
                f"A producer named {producer.name} is already connected to {self._topic}; "
                "choose another name or close it"
            )
        self._fence(older, "replaced by its own reconnection")

    def _named(self, name: str) -> Producer | None:
        waiting = (producer for producer in self._waiting if producer.name == name)
        return self._connected.get(name) or next(waiting, None)

    def _refuse_older_epoch(self, producer: Producer) -> None:
        asked, now = producer.topic_epoch, self.epoch
        if asked is not None and now is not None and asked < now:
            raise ProducerFenced(
                f"{self._topic} is at epoch {now}; a producer of epoch {asked} was fenced"
            )

    def _fence_all(self, reason: str) -> None:
        for producer in self.everybody():
            self._fence(producer, reason)

    def _fence(self, producer: Producer, reason: str) -> None:
        self._drop(producer, ProducerFenced(f"{self._topic}: {reason}"))

    def send_away(self, producer: Producer, reason: PulsarError) -> None:
        """Removes a producer that may not stay."""
        self._drop(producer, reason)

    def _drop(self, producer: Producer, error: PulsarError) -> None:
        self._forget(producer)
        producer.state = ProducerState.FENCED
        if not self._tell(producer, error):
            producer.owner.close_producer(producer, str(error))

    def _tell(self, producer: Producer, error: PulsarError | None) -> bool:
        """Answer the pending request of a waiting producer; False if it was not waiting."""
        granted, producer.granted = producer.granted, None
        if granted is not None:
            granted(error)
        return granted is not None
