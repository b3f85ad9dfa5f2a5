"""A non-persistent topic: a message goes to consumers that are ready for it now, and is then
forgotten.

    publish → each subscription (dispatch) → receipt

A run of messages is offered to one subscription after the other, over several loop turns if there
are many. Its bytes stay in the publish budget until then, so memory is limited as it is for
messages that are not durable yet. Nothing is written: topic and subscriptions disappear with the
process, and are created again on next use.

Differs: messages are numbered (ledger 0, entries from 0); Apache Pulsar calls all of them 0:0.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from managed_ledger.position import Position
from pybroker.base.errors import NotAllowed, ProducerFenced, PulsarError, SubscriptionNotFound
from pybroker.base.names import TopicName, check_subscription_name
from pybroker.base.runtime import Clock, Tasks
from pybroker.broker.deduplication import Taken
from pybroker.broker.dispatch.delivery import ROUND_BYTES, Delivery
from pybroker.broker.nonpersistent.subscription import NonPersistentSubscription
from pybroker.broker.persistent.life import Life
from pybroker.broker.persistent.producers import Granted, Producer, Producers, ProducerState
from pybroker.broker.persistent.publishing import Published, PublishRun
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.gate import Gate
from pybroker.broker.policies.limits import check_producers, check_subscriptions
from pybroker.broker.policies.subscribe_rate import SubscribeLimit
from pybroker.broker.subscriptions.isolation import Isolation

# The cost of offering a run to one subscription, besides its bytes, and of each entry.
_OFFER_BYTES: Final = 4096
_ENTRY_BYTES: Final = 256
_LEDGER: Final = 0
_ENTRIES: Final = 1 << 34  # then the numbers start again at 0


class _Offer:
    """A run being offered to the subscriptions that existed on its arrival (a shared tuple)."""

    __slots__ = ("audience", "delivery", "done", "next")

    def __init__(
        self,
        delivery: Delivery,
        audience: tuple[NonPersistentSubscription, ...],
        done: Callable[[], None],
    ) -> None:
        self.delivery = delivery
        self.audience = audience
        self.next = 0  # index of the next subscription
        self.done = done

    @property
    def cost_bytes(self) -> int:
        """The cost of offering the run to one subscription; Key_Shared examines each entry."""
        entries = self.delivery.entries
        return sum(map(len, entries)) + _ENTRY_BYTES * len(entries) + _OFFER_BYTES


class NonPersistentTopic(Life[NonPersistentSubscription]):
    writes: Final = None  # there are no writes to count
    __slots__ = (
        "_audience",
        "_next_entry",
        "_offers",
        "bytes_in",
        "chunked",
        "clock",
        "created_at_ms",
        "gate",
        "messages_in",
        "policies",
        "published_at_ms",
        "subscribe_limit",
        "tasks",
    )

    deduplication: Final = None
    terminated: Final = False
    to_be_deduplicated: Final = False
    quota: Final = None
    retention_ms: Final = 0

    def __init__(self, name: TopicName, clock: Clock, policies: Effective) -> None:
        super().__init__(name, Producers(name, None, _forget_epoch))
        self.clock = clock
        self.policies = policies  # the current ones: see policies/following
        self.created_at_ms = clock.now_ms()
        self.gate: Gate | None = None
        self.subscribe_limit: SubscribeLimit | None = None
        self.tasks = Tasks(name)
        self.messages_in = self.bytes_in = 0
        self.published_at_ms = 0
        self.chunked = False
        self._next_entry = 0
        self._offers: deque[_Offer] = deque()
        self._audience: tuple[NonPersistentSubscription, ...] | None = None

    # -- publish

    def publish(
        self,
        producer: Producer,
        run: PublishRun,
        published: Published,
        taken: Taken | None = None,
    ) -> None:
        """`published` is called once the run has been offered to all subscriptions."""
        refusal = self._refusal(producer, run)
        if refusal is not None:
            published(None, refusal)
            return
        self.messages_in += sum(run.message_counts)
        self.published_at_ms = self.clock.now_ms()
        first = self._next_entry
        self._next_entry = (first + len(run.entries)) % _ENTRIES
        ids = range(first, first + len(run.entries))
        delivery = Delivery(_LEDGER, ids, run.entries, run.message_counts)
        self._offers.append(
            _Offer(
                delivery,
                self._everybody(),
                lambda: published(Position(_LEDGER, first), None),
            )
        )
        if len(self._offers) == 1:
            self._offer_some()

    def _refusal(self, producer: Producer, run: PublishRun) -> PulsarError | None:
        if run.txn_id is not None:
            return NotAllowed("PublishTxnMessage is not supported by non-persistent topic")
        if producer.state is not ProducerState.WRITING:
            return ProducerFenced(
                f"Producer {producer.name} on {self.name} {producer.state.value}; it cannot publish"
            )
        return None if self._closed is None else self._unloading()

    def _everybody(self) -> tuple[NonPersistentSubscription, ...]:
        """The subscriptions; the same tuple until one is added or removed."""
        if self._audience is None:
            self._audience = tuple(self.subscriptions.values())
        return self._audience

    def _offer_some(self) -> None:
        """Offers as much as fits into a turn of the loop."""
        bytes_left = ROUND_BYTES
        while self._offers:
            offer = self._offers[0]
            cost_bytes = offer.cost_bytes
            while offer.next < len(offer.audience):
                if bytes_left <= 0:
                    asyncio.get_running_loop().call_soon(self._offer_some)
                    return
                subscription = offer.audience[offer.next]
                offer.next += 1
                subscription.offer(offer.delivery)
                bytes_left -= cost_bytes
            self._offers.popleft()
            offer.done()

    async def add_producer(self, producer: Producer, granted: Granted) -> bool:
        """Like Topic.add_producer."""
        self.check_open()
        await check_producers(self, producer.encrypts)
        return await self.producers.add(producer, granted)

    # -- other topics read these from their log

    async def last_message_id(self, limit: Position | None = None) -> tuple[Position, int]:
        """There is nothing to read."""
        return Position(_LEDGER, -1), -1

    async def message_count(self, position: Position) -> int:
        return 0

    def known_message_count(self, position: Position) -> int | None:
        return 0

    # -- subscriptions

    async def subscription(
        self, name: str, start: Position | None, properties: dict[str, str], create: bool
    ) -> NonPersistentSubscription:
        """`start` has no effect. Raises SubscriptionNotFound, NotAllowed."""
        existing = self._existing(name, durable=True)
        if existing is not None:
            return existing
        check_subscription_name(name)
        if not create:
            raise SubscriptionNotFound(
                f"Subscription {name} of {self.name} does not exist and auto-creation is off"
            )
        check_subscriptions(self)
        return self._subscribe(name, durable=True, properties=properties)

    async def reader_subscription(
        self, name: str, start: Position | None, asked: Isolation | None = None
    ) -> NonPersistentSubscription:
        """The subscription ends with its last consumer. Transactions cannot write here, so all
        messages are committed.
        """
        return self._existing(name, durable=False) or self._subscribe(name, False, {})

    def _subscribe(
        self, name: str, durable: bool, properties: dict[str, str]
    ) -> NonPersistentSubscription:
        subscription = NonPersistentSubscription(self, name, durable, properties)
        self.subscriptions[name] = subscription
        self._audience = None
        return subscription

    def _existing(self, name: str, durable: bool) -> NonPersistentSubscription | None:
        self.check_open()
        existing = self.subscriptions.get(name)
        if existing is not None and existing.durable is not durable:
            kind = "a durable subscription" if existing.durable else "a reader"
            raise NotAllowed(f"{name} of {self.name} is already {kind}; choose another name")
        return existing

    def end_of_reader(self, subscription: NonPersistentSubscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            self._audience = None
            self.deserted()

    async def delete_subscription(self, name: str) -> None:
        """Disconnects its consumers. Raises SubscriptionNotFound."""
        subscription = self.subscriptions.pop(name, None)
        self._audience = None
        if subscription is None:
            raise SubscriptionNotFound(f"Subscription {name} of {self.name} does not exist")
        subscription.close("the subscription was deleted")
        self.deserted()

    # -- life

    @property
    def idle(self) -> bool:
        """Like Topic.idle."""
        return self.no_client_has_its_schema and not self.messages_in

    @property
    def busy(self) -> bool:
        return bool(self._offers)

    async def close(self, reason: str = "closed") -> None:
        """Disconnect all clients. Accepted messages count as published."""
        self.retire(reason)
        for subscription in self.subscriptions.values():
            subscription.close(reason)
        for offer in self._offers:
            offer.next = len(offer.audience)
        self._offer_some()
        await self.tasks.close()

    async def discard(self) -> None:
        await self.close("deleted")


async def _forget_epoch(epoch: int) -> None:
    """Exclusive access lasts no longer than this process."""
