"""A topic that takes no more messages, and producers that come back to learn what it has stored.

A client whose connection was lost resends what was not answered. If its topic was terminated
meanwhile and deduplicates, the producer is admitted: copies of stored messages get their receipts,
in order. With the first other message the producer is closed, and refused with TopicTerminated on
this connection. So a client does not send to the children of a sealed segment what the segment has
stored.

Differs: Apache Pulsar refuses such a producer at once. Its V5 SDK does not come back if it hears of
the split first: it stores these messages twice.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakSet

from managed_ledger.ledger import ManagedLedger
from managed_ledger.shared_task import shared_task
from pybroker.base.errors import ServiceNotReady, TopicTerminated
from pybroker.base.names import TopicName
from pybroker.broker.deduplication.deduplication import Deduplication
from pybroker.broker.persistent.producers import Producer, ProducerOwner, Producers
from pybroker.broker.persistent.publishing import LAST_WRITES_S, OnTheWay

TERMINATED: Final = "terminated"  # of the ledger


class Termination:
    """Of one topic: whether it was terminated, and who knows."""

    __slots__ = (
        "_ledger",
        "_name",
        "_on_the_way",
        "_producers",
        "_running",
        "_told",
        "begun",
        "done",
    )

    def __init__(
        self, name: TopicName, ledger: ManagedLedger, producers: Producers, on_the_way: OnTheWay
    ) -> None:
        self._name = name
        self._ledger = ledger
        self._producers = producers
        self._on_the_way = on_the_way
        self._running: asyncio.Task[None] | None = None
        self._told: WeakSet[ProducerOwner] | None = None
        self.done = TERMINATED in ledger.properties  # permanently
        self.begun = self.done  # it takes no messages; an attribute, since each message asks

    def refusal(self) -> TopicTerminated:
        return TopicTerminated(f"{self._name} was terminated; it accepts no more messages")

    async def terminate(self, then: Callable[[], None]) -> None:
        """Durable when it returns. `then` is called once. Raises ServiceNotReady, and what the
        storage raises. Concurrent callers share the outcome.
        """
        if self._running is None:
            self.begun = True
            self._running = shared_task(self._terminate(then))
        await asyncio.shield(self._running)

    async def _terminate(self, then: Callable[[], None]) -> None:
        """Producers are closed after their receipts, and get the reason when they reconnect: some
        clients wait forever if a producer is told only in the answer to a message.
        """
        try:
            if not await self._on_the_way.settled():
                raise ServiceNotReady(f"messages were not written within {LAST_WRITES_S:g} s")
            await self._ledger.set_property(TERMINATED, "true")
            self.done = True
            self.tell(self._producers.everybody())
        # Messages that came meanwhile were not answered and must be resent.
        except Exception as error:
            self._producers.disconnect(
                ServiceNotReady(f"{self._name} could not be terminated: {error}")
            )
            raise
        finally:
            self._running, self.begun = None, self.done
        then()

    def admit(self, producer: Producer, deduplication: Deduplication | None) -> None:
        """Raises TopicTerminated."""
        if self.begun and not (
            deduplication is not None
            and deduplication.knows(producer.name)
            and (self._told is None or producer.owner not in self._told)
        ):
            raise self.refusal()

    def tell(self, producers: Iterable[Producer]) -> None:
        """All that these have sent on their connections is answered, or refused."""
        if self._told is None:
            self._told = WeakSet()
        producers = list(producers)
        self._told.update(each.owner for each in producers)
        self._producers.close(producers, self.refusal())
