"""Subscriptions of a topic or of all its partitions: list, create, delete, skip, expire, reset."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from managed_ledger.position import EARLIEST, LATEST, Position
from pybroker.admin.finding import each_part, each_served, single
from pybroker.admin.operation import MUCH_BYTES, Body, DescribedRoute, flags
from pybroker.admin.routing import TOPIC, flag, message_id, read_json, route, texts, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import PROPERTIES, PROPERTIES_TAKEN, RESET_CURSOR, TEXTS
from pybroker.base.errors import SubscriptionNotFound, TopicNotFound
from pybroker.base.json_schema import TRUTH, any_of, choice, map_of
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.nonpersistent.topic import NonPersistentTopic
from pybroker.broker.persistent.publish_time import first_published_at
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies import expiry
from pybroker.broker.subscriptions import subscription_properties
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.broker.subscriptions.waiting_entries import nth_waiting

_SUBSCRIPTION: Final = TOPIC + "/subscription/{subscription:form}"
_AGE: Final = "{age_s:int}"
_SAID: Final = 10  # subscriptions listed in an error


class SubscriptionRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics
        self._clock = services.clock

    def routes(self) -> list[DescribedRoute]:
        place = any_of(RESET_CURSOR, choice("earliest", "latest"))
        at = Body(place, required=False, most_bytes=MUCH_BYTES)
        to = Body(place, most_bytes=MUCH_BYTES)
        return [
            route("GET", f"{TOPIC}/subscriptions", self.list_all, TEXTS),
            route(
                "PUT",
                _SUBSCRIPTION,
                self.create,
                query=flags("replicated"),
                body=at,
                refuses=(409,),
            ),
            route("DELETE", _SUBSCRIPTION, self.delete, query=flags("force"), refuses=(409,)),
            route("GET", f"{_SUBSCRIPTION}/properties", self.properties, PROPERTIES),
            route(
                "PUT",
                f"{_SUBSCRIPTION}/properties",
                self.set_properties,
                body=Body(PROPERTIES_TAKEN, required=False, most_bytes=MUCH_BYTES),
            ),
            route(
                "GET",
                f"{_SUBSCRIPTION}/replicatedSubscriptionStatus",
                self.replicated,
                map_of(TRUTH, most=None),
            ),
            route(
                "POST",
                f"{_SUBSCRIPTION}/replicatedSubscriptionStatus",
                self.set_replicated,
                body=TRUTH,
            ),
            route("POST", f"{_SUBSCRIPTION}/skip_all", self.skip_all),
            route("POST", f"{_SUBSCRIPTION}/skip/{{count:int}}", self.skip),
            route(
                "POST",
                f"{_SUBSCRIPTION}/expireMessages",
                self.expire_to_position,
                body=to,
                refuses=(409,),
            ),
            route(
                "POST",
                f"{_SUBSCRIPTION}/expireMessages/{_AGE}",
                self.expire_by_age,
                refuses=(409,),
            ),
            route(
                "POST",
                f"{TOPIC}/all_subscription/expireMessages/{_AGE}",
                self.expire_all,
                refuses=(409,),
            ),
            route("POST", f"{_SUBSCRIPTION}/resetcursor", self.reset_to_position, body=to),
            route("POST", f"{_SUBSCRIPTION}/resetcursor/{{timestamp_ms:int}}", self.reset_to_time),
        ]

    async def list_all(self, request: Request) -> list[str]:
        names = [n async for topic in self._each_served(request) for n in topic.subscriptions]
        return sorted(set(names))

    async def create(self, request: Request) -> None:
        """Creates a subscription at the position in the body (as for reset_to_position), by default
        at the end.

        The topic is auto-created if that is enabled.
        """
        name = request.path_params["subscription"]
        body = await read_json(request, "latest")
        first = _position(body)
        properties = texts(body.get("properties") if isinstance(body, dict) else None)
        topics = [topic async for topic in self._each_wanted(request)]
        without = [topic for topic in topics if name not in topic.subscriptions]
        if not without:
            raise Conflict(f"Subscription {name} of {topic_of(request)} already exists")
        for topic in without:
            start = _mark_delete_before(first, topic)
            late = isinstance(topic, Topic) and topic.terminated
            made = await topic.subscription(name, start, properties, create=True)
            if self._topics.is_segment(topic.name):
                after_it = None if start is None else EARLIEST
                await self._topics.scalable.subscribed(topic, made, after_it, late)
            if flag(request, "replicated") and isinstance(made, Subscription):
                await subscription_properties.replicate(made.cursor)

    async def delete(self, request: Request) -> None:
        name = request.path_params["subscription"]
        topics = [topic async for topic in self._each_served(request)]
        there = [topic for topic in topics if name in topic.subscriptions]  # loads all
        _check_found(bool(there), request)
        if any(topic.subscriptions[name].consumers for topic in there) and not flag(
            request, "force"
        ):
            raise HTTPException(
                412,
                f"Subscription {name} has connected consumers; close them or use force",
            )
        for topic in there:
            await topic.delete_subscription(name)

    async def skip_all(self, request: Request) -> None:
        async for _, subscription in self._each(request):
            await subscription.skip_all()

    async def skip(self, request: Request) -> None:
        """Skips the first N entries of the backlog, or all if there are fewer."""
        await single(self._topics, topic_of(request), "skip entries of")
        async for topic, subscription in self._each(request):
            if count := request.path_params["count"]:
                last = nth_waiting(topic.ledger, subscription.cursor, topic.hidden, count)
                await subscription.skip_to(last or subscription.reader.limit)

    async def properties(self, request: Request) -> dict[str, str]:
        async for _, subscription in self._each(request):
            return subscription_properties.shown(subscription.cursor)
        raise AssertionError("_each finds one or raises")

    async def set_properties(self, request: Request) -> None:
        properties = texts(await read_json(request))
        async for _, subscription in self._each(request):
            await subscription_properties.replace(subscription.cursor, properties)

    async def replicated(self, request: Request) -> dict[str, bool]:
        """The subscription's properties, by topic or partition."""
        return {
            str(topic.name): subscription_properties.is_replicated(subscription.cursor)
            async for topic, subscription in self._each(request)
        }

    async def set_replicated(self, request: Request) -> None:
        """Marks the subscription as replicated or not: the body is true or false."""
        replicated = await read_json(request)
        async for _, subscription in self._each(request):
            await subscription_properties.set_replicated(subscription.cursor, replicated)

    async def expire_to_position(self, request: Request) -> None:
        """Expires everything up to {ledgerId, entryId}; with excluded, everything before it.

        Messages that open transactions hold stay, and the answer is a conflict; all others expire.
        """
        await single(self._topics, topic_of(request), "expire the messages of")
        body = await read_json(request)
        position, excluded = _position(body), _is_excluded(body)
        last = position.before if excluded else position
        _check_nothing_stays(
            [await self._expire(topic, of, last) async for topic, of in self._each(request)]
        )

    async def expire_by_age(self, request: Request) -> None:
        """Expires messages published at least that many seconds ago; a conflict if some stay."""
        _check_nothing_stays(
            [
                await self._expire_older(topic, subscription, *await self._older(topic, request))
                async for topic, subscription in self._each(request)
            ]
        )

    async def expire_all(self, request: Request) -> None:
        """Expires messages by age, on each subscription."""
        stay = []
        async for topic in self._each_topic(request):
            younger_ms, last = await self._older(topic, request)
            for subscription in topic.each_subscription():
                stay.append(await self._expire_older(topic, subscription, younger_ms, last))
        _check_nothing_stays(stay)

    async def _expire(self, topic: Topic, subscription: Subscription, up_to: Position) -> str:
        """Expires messages as the policy does. Returns a description of what stays, or "". Raises
        ServiceNotReady if the subscription is closed meanwhile.
        """
        up_to = min(up_to, topic.ledger.last_confirmed)
        await expiry.drop(topic, subscription, up_to, self._clock.now_ms())
        subscription.check_open()
        entries = expiry.waiting_up_to(subscription, up_to)
        return f"{entries} on {subscription.name} of {topic.name}" if entries else ""

    async def _expire_older(
        self, topic: Topic, subscription: Subscription, younger_ms: int, last: Position
    ) -> str:
        up_to = await expiry.only_older(topic, subscription, younger_ms, last)
        return await self._expire(topic, subscription, up_to)

    async def _older(self, topic: Topic, request: Request) -> tuple[int, Position]:
        """The earliest publish time (ms) that must not expire, and the last position before it."""
        younger_ms = self._clock.now_ms() - request.path_params["age_s"] * 1000 + 1
        younger = await first_published_at(topic.ledger, younger_ms)
        return younger_ms, topic.ledger.previous_position(younger)

    async def reset_to_position(self, request: Request) -> None:
        """Moves the cursor to {ledgerId, entryId[, batchIndex][, excluded]}, the next message to
        deliver; with excluded, to the message after it.
        """
        body = await read_json(request)
        if _position(body) not in (EARLIEST, LATEST):
            await single(self._topics, topic_of(request), "go to a message of")
        async for topic, subscription in self._each(request):
            await subscription.seek(*await _place(topic, body))
            await self._rewound(topic, subscription)

    async def reset_to_time(self, request: Request) -> None:
        async for topic, subscription in self._each(request):
            await subscription.seek_to_time(request.path_params["timestamp_ms"])
            await self._rewound(topic, subscription)

    async def _rewound(self, topic: Topic, subscription: Subscription) -> None:
        if self._topics.is_segment(topic.name):
            await self._topics.scalable.rewound(topic.name.scalable_name, subscription.name)

    async def _each_wanted(self, request: Request) -> AsyncIterator[ServedTopic]:
        """The topics, auto-created if that is enabled. Raises HTTPException."""
        name = topic_of(request)
        try:
            count = await self._topics.partitions_for_client(name, auto_create=True)
            for part in [name.partition_at(index) for index in range(count)] or [name]:
                yield await self._topics.require(part)
        except TopicNotFound as error:
            raise HTTPException(412, f"Topic cannot be auto-created: {error}") from None

    def _each_served(self, request: Request) -> AsyncIterator[ServedTopic]:
        return each_served(self._topics, topic_of(request))

    def _each_topic(self, request: Request) -> AsyncIterator[Topic]:
        return each_part(self._topics, topic_of(request))

    async def _each(self, request: Request) -> AsyncIterator[tuple[Topic, Subscription]]:
        """The subscriptions of that name. Raises SubscriptionNotFound if no partition has one."""
        name = request.path_params["subscription"]
        found = False
        async for topic in self._each_topic(request):
            if name in topic.subscriptions:
                found = True
                yield topic, topic.subscriptions[name]
        _check_found(found, request)


def _check_found(found: bool, request: Request) -> None:
    if not found:
        name = request.path_params["subscription"]
        raise SubscriptionNotFound(f"{topic_of(request)} has no subscription {name}")


def _check_nothing_stays(stay: Sequence[str]) -> None:
    """Raises Conflict if a text is not empty."""
    if said := [text for text in stay if text]:
        more = f" and on {len(said) - _SAID} more" if len(said) > _SAID else ""
        raise Conflict(
            "Open transactions hold entries that should expire, so these were not expired: "
            f"{', '.join(said[:_SAID])}{more}. Everything before them has expired. Retry when the "
            "transactions have ended (slow-transactions lists them)"
        )


def _position(body: Any) -> Position:
    """A position from "earliest", "latest" or a message id in JSON."""
    if body in ("latest", "earliest"):
        return LATEST if body == "latest" else EARLIEST
    return message_id(body)


def _is_excluded(body: Any) -> bool:
    """Accepts Apache Pulsar's two spellings: that of its clients, and that of its field."""
    return isinstance(body, dict) and bool(body.get("excluded") or body.get("isExcluded"))


async def _place(topic: Topic, body: Any) -> tuple[Position, int, int]:
    """The arguments of Subscription.seek."""
    position, excluded = _position(body), _is_excluded(body)
    if position in (EARLIEST, LATEST):
        return position, 0, 0
    index, size = body.get("batchIndex"), 0
    if (
        index is not None
        and index >= 0
        and topic.config.acknowledgment_at_batch_index_level_enabled
    ):
        size = await topic.message_count(position)
    if not size:
        return position.after if excluded else position, 0, 0
    left_out = index + excluded  # number of messages in the batch before the position
    if left_out >= size:
        return position.after, 0, 0
    return position, (1 << size) - (1 << left_out), size


def _mark_delete_before(first: Position, topic: ServedTopic) -> Position | None:
    if first >= LATEST or isinstance(topic, NonPersistentTopic):
        return None
    return EARLIEST if first <= EARLIEST else topic.ledger.previous_position(first)
