"""Single segments of scalable topics, by range and number: Apache Pulsar's brokers ask each other
for them.

The record of a topic decides which segments there are, so these routes make, end and delete none.
"""

import re
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from managed_ledger.position import EARLIEST
from pybroker.admin.finding import existing
from pybroker.admin.operation import Body, DescribedRoute, flags
from pybroker.admin.routing import SEGMENT_PATH, asked, number, read_json, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import TEXTS
from pybroker.base.errors import InvalidTopicName, SubscriptionNotFound
from pybroker.base.json_schema import COUNT, whole
from pybroker.base.names import SEGMENT, TopicName, check_subscription_name
from pybroker.broker.brokers.ownership import check_owned
from pybroker.broker.namespaces.tenants import Conflict, InUse
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable.record import NoSuchSegment, SegmentRecord
from pybroker.broker.subscriptions.subscription import Subscription

_SUBSCRIPTION: Final = SEGMENT_PATH + "/subscription/{subscription:form}"
_DESCRIPTOR: Final = re.compile(r"[0-9a-f]{4}-[0-9a-f]{4}-(0|[1-9][0-9]{0,17})", re.ASCII)


class SegmentRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics

    def routes(self) -> list[DescribedRoute]:
        subscriptions = Body(TEXTS, required=False)
        return [
            route("PUT", SEGMENT_PATH, self.create, body=subscriptions),
            route("DELETE", SEGMENT_PATH, self.delete, query=flags("force"), refuses=(409,)),
            route("POST", f"{SEGMENT_PATH}/terminate", self.terminate, refuses=(409,)),
            route("PUT", _SUBSCRIPTION, self.create_subscription),
            route("DELETE", _SUBSCRIPTION, self.delete_subscription),
            route("GET", f"{_SUBSCRIPTION}/backlog", self.backlog, COUNT),
            route("POST", f"{_SUBSCRIPTION}/seek", self.seek, query={"timestamp": whole(0)}),
            route("POST", f"{_SUBSCRIPTION}/skip-all", self.skip_all),
        ]

    async def create(self, request: Request) -> None:
        """Prepares a segment of the record, which gets the subscriptions in the body, from its
        first message. Idempotent.
        """
        topic = await self._topic(request)
        for name in await read_json(request, []):
            await self._subscribe(topic, name)

    async def delete(self, request: Request) -> None:
        """Refused while the record has the segment."""
        name, segment = await self._segment(request)
        raise Conflict(
            f"{name} is {'a sealed' if segment.sealed else 'an active'} segment of its topic",
            "delete the topic; a sealed segment is deleted by itself once everything is consumed",
        )

    async def terminate(self, request: Request) -> None:
        """A sealed segment has ended, or will when its producers have left it. An active one ends
        by a split or merge only: otherwise nobody could publish to its range.
        """
        name, segment = await self._segment(request)
        if not segment.sealed:
            raise Conflict(f"{name} is an active segment", "split or merge it")

    async def create_subscription(self, request: Request) -> None:
        """From the first message of the segment on. Idempotent."""
        await self._subscribe(await self._topic(request), request.path_params["subscription"])

    async def _subscribe(self, topic: Topic, subscription: str) -> None:
        check_subscription_name(subscription)
        late = topic.terminated or subscription in topic.subscriptions
        made = await topic.subscription(subscription, EARLIEST, {}, create=True)
        await self._topics.scalable.subscribed(topic, made, EARLIEST, late)

    async def delete_subscription(self, request: Request) -> None:
        topic, found = await self._subscription(request)
        if found.consumers:
            raise InUse(f"{found} has connected consumers; close them first")
        await topic.delete_subscription(found.name)

    async def backlog(self, request: Request) -> int:
        """The number of messages that the subscription has not acknowledged on the segment."""
        return (await self._subscription(request))[1].backlog

    async def seek(self, request: Request) -> None:
        """Moves the subscription to the first message published at ?timestamp (ms) or later."""
        if asked(request, "timestamp") is None:
            raise HTTPException(400, "No time given: add ?timestamp=… in milliseconds")
        topic, found = await self._subscription(request)
        await found.seek_to_time(number(request, "timestamp", 0))
        await self._topics.scalable.rewound(topic.name.partitioned_name, found.name)

    async def skip_all(self, request: Request) -> None:
        await (await self._subscription(request))[1].skip_all()

    async def _subscription(self, request: Request) -> tuple[Topic, Subscription]:
        topic, name = await self._topic(request), request.path_params["subscription"]
        if (found := topic.subscriptions.get(name)) is None:
            raise SubscriptionNotFound(f"{topic.name} has no subscription {name}")
        return topic, found

    async def _topic(self, request: Request) -> Topic:
        return await existing(self._topics, (await self._segment(request))[0])

    async def _segment(self, request: Request) -> tuple[TopicName, SegmentRecord]:
        """Raises InvalidTopicName, TopicNotFound, NoSuchSegment, NotServedHere."""
        whole_name, descriptor = topic_of(request), request.path_params["descriptor"]
        if not _DESCRIPTOR.fullmatch(descriptor):
            raise InvalidTopicName(
                f"{descriptor[:50]!r} is no segment: use its range and number, as 0000-7fff-1"
            )
        check_owned(self._topics.ownership, whole_name)
        await self._topics.scalable.settled(whole_name)
        name = whole_name._replace(domain=SEGMENT, local=f"{whole_name.local}/{descriptor}")
        if (segment := self._topics.scalable.segment(name)) is None:
            raise NoSuchSegment(f"{whole_name} has no segment {descriptor}: get its metadata")
        return name, segment
