"""A subscription of a scalable topic as a whole: the same subscription on each of its segments.

Consumers make subscriptions by themselves; these operations are for administrators.
"""

from collections.abc import AsyncIterator

from pybroker.base.errors import SubscriptionNotFound, TopicNotFound, TopicTerminated
from pybroker.base.names import TopicName, check_subscription_name
from pybroker.broker.brokers.ownership import check_owned
from pybroker.broker.namespaces.tenants import Conflict, InUse
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable.record import of_segment, with_subscription
from pybroker.broker.scalable.serving import ServesTopics
from pybroker.broker.scalable.topics import ScalableTopics
from pybroker.broker.subscriptions.subscription import Subscription


class WholeSubscriptions:
    def __init__(self, topics: ServesTopics, scalable: ScalableTopics) -> None:
        self._topics = topics
        self._scalable = scalable

    async def each_segment(self, name: TopicName) -> AsyncIterator[Topic]:
        """Loaded one after the other, without what is pruned meanwhile. Raises TopicNotFound,
        NotServedHere.
        """
        check_owned(self._topics.ownership, name)
        record = await self._scalable.settled(name)
        for each in sorted(record.segments.values()):
            try:
                topic = await self._topics.get(of_segment(name, each), create=True)
            except (TopicNotFound, TopicTerminated):
                if each.id in self._scalable.get(name).segments:
                    raise
                continue
            assert topic is not None
            yield topic

    async def each(self, name: TopicName, subscription: str) -> list[Subscription]:
        """On the segments that have it. Raises SubscriptionNotFound if none has."""
        return list((await self._by_segment(name, subscription)).values())

    async def _by_segment(
        self, name: TopicName, subscription: str
    ) -> dict[TopicName, Subscription]:
        found = {
            topic.name: topic.subscriptions[subscription]
            async for topic in self.each_segment(name)
            if subscription in topic.subscriptions
        }
        if not found:
            raise SubscriptionNotFound(f"{name} has no subscription {subscription}")
        return found

    async def create(self, name: TopicName, subscription: str, kind: str) -> None:
        """From now on: what is in the topic already is not for it. Idempotent. Raises Conflict if
        it exists with another type.
        """
        check_subscription_name(subscription)
        there = (await self._scalable.settled(name)).subscriptions.get(subscription, kind)
        if there != kind:
            raise Conflict(
                f"Subscription {subscription} of {name} exists with type {there}",
                "choose another name, or delete it first",
            )
        async for topic in self.each_segment(name):
            late = topic.terminated or subscription in topic.subscriptions
            made = await topic.subscription(subscription, None, {}, create=True)
            await self._scalable.subscribed(topic, made, None, late)
        await self._scalable.change(name, lambda now: with_subscription(now, subscription, kind))

    async def delete(self, name: TopicName, subscription: str) -> None:
        """Raises SubscriptionNotFound; InUse if it has consumers."""
        found = await self.each(name, subscription)
        if any(each.consumers for each in found):
            raise InUse(f"Subscription {subscription} has connected consumers; close them first")
        epoch = -1
        while epoch != (record := await self._scalable.settled(name)).epoch:
            epoch = record.epoch  # what was split meanwhile has children with this subscription
            async for topic in self.each_segment(name):
                if subscription in topic.subscriptions:
                    await topic.delete_subscription(subscription)
        await self._scalable.rewound(name, subscription)
        await self._scalable.change(name, lambda now: with_subscription(now, subscription, None))

    async def seek(self, name: TopicName, subscription: str, timestamp_ms: int) -> None:
        """To the first message of each segment that was published then or later. Stream consumers
        leave the children of segments that are not drained any more, before these are moved.
        """
        found = await self._by_segment(name, subscription)
        sealed = {of_segment(name, each) for each in self._scalable.get(name).sealed}
        for topic, each in found.items():
            if topic in sealed:
                await each.seek_to_time(timestamp_ms)
                await self._scalable.rewound(name, subscription)
        for topic, each in found.items():
            if topic not in sealed:
                await each.seek_to_time(timestamp_ms)

    async def skip_all(self, name: TopicName, subscription: str) -> None:
        for each in await self.each(name, subscription):
            await each.skip_all()
