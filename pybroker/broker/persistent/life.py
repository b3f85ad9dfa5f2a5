"""The life cycle of a topic, persistent or not: from loading until retired, closed or deleted."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from typing import Any, Generic, Protocol, TypeVar

from managed_ledger.position import EARLIEST, Position
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.base.runtime import do_nothing
from pybroker.broker.persistent.producers import Producers
from pybroker.broker.subscriptions.consumer import Consumer


def everything() -> Position:
    return EARLIEST.after  # nothing is trimmed while a topic is being loaded


class LogView(Protocol):
    """Another protocol's view of a topic's log, attached to the topic."""

    def notify(self) -> None:
        """There are new entries, or more of them may be read."""
        ...

    async def close(self) -> None:
        """The topic is being closed; its log still takes what belongs to it."""
        ...

    async def catch_up(self) -> None:
        """Store elsewhere what is needed of the log, so that its entries may be deleted. Raises
        ManagedLedgerError.
        """
        ...

    def discard(self) -> None:
        """The topic is being deleted."""
        ...


class Consumed(Protocol):
    @property
    def consumers(self) -> Collection[Consumer]: ...


S = TypeVar("S", bound=Consumed)


class Life(Generic[S]):
    """The life of a topic whose subscriptions are of type `S`."""

    __slots__ = (
        "__weakref__",
        "_closed",
        "deserted_at_s",
        "name",
        "on_deserted",
        "producers",
        "subscriptions",
        "view",
    )

    def __init__(self, name: TopicName, producers: Producers) -> None:
        self.name = name
        self.producers = producers
        self.producers.on_deserted = self.deserted
        self.subscriptions: dict[str, S] = {}
        self.on_deserted: Callable[[Any], None] = do_nothing
        self.deserted_at_s = 0.0  # by the loop's time
        self.view: LogView | None = None
        self._closed: str | None = None  # the reason

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def each_subscription(self) -> Iterator[S]:
        """Iterates over subscriptions across awaits, skipping those removed meanwhile."""
        for name, subscription in list(self.subscriptions.items()):
            if self.subscriptions.get(name) is subscription:
                yield subscription

    @property
    def in_use(self) -> bool:
        return len(self.producers) > 0 or any(len(s.consumers) for s in self.subscriptions.values())

    @property
    def no_client_has_its_schema(self) -> bool:
        """Whether there are no producers, and only consumers that accept any schema."""
        consumers = (c for s in self.subscriptions.values() for c in s.consumers)
        return not len(self.producers) and all(c.request.takes_any_schema for c in consumers)

    def check_open(self) -> None:
        """Raises ServiceNotReady once the topic is closing."""
        if self._closed is not None:
            raise self._unloading()

    def _unloading(self) -> ServiceNotReady:
        return ServiceNotReady(f"{self.name} is being unloaded: {self._closed}")

    def deserted(self) -> None:
        """Called when the last producer or a subscription has left: the topic may be unused now."""
        self.deserted_at_s = asyncio.get_running_loop().time()
        if self._closed is None:
            self.on_deserted(self)

    def forget_subscription(self, name: str) -> None:
        """Called when the subscription has ended."""
        self.subscriptions.pop(name, None)
        self.deserted()

    def break_cycles(self) -> None:
        """Breaks reference cycles, so that the topic is freed without a garbage collection."""
        self.on_deserted = do_nothing
        self.producers.topic_ended()
        self.subscriptions.clear()
        if self.view is not None:
            self.view.discard()
            self.view = None

    def retire(self, reason: str) -> None:
        """Ends the use of a topic that is unused: from now on clients are told to retry."""
        self._closed = reason
        self.producers.disconnect_all(self._unloading())
