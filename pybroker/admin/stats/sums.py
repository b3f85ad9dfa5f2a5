"""A topic's share in the broker's sums: some of its statistics, at a tenth of their cost."""

from typing import Final, NamedTuple

from pybroker.admin.stats.blocking import blocked_entries
from pybroker.admin.stats.flows import Flow, Flows
from pybroker.admin.stats.topic import Stats
from pybroker.base.runtime import Clock, Pace
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.subscriptions.consumer import Consumer
from pybroker.broker.subscriptions.subscription import Subscription

_OF_TOPIC: Final = 5  # messages and bytes in; entries written, read, read from the disk
_OF_CONSUMER: Final = 2  # messages and bytes


class Share(NamedTuple):
    """One topic's share. Rates are per second; `blocked` is 1 if a transaction blocks readers."""

    topics: int
    subscriptions: int
    producers: int
    consumers: int
    backlog: int
    blocked: int
    stored_bytes: int
    bytes_in: int
    bytes_out: int
    messages_in_rate: float
    bytes_in_rate: float
    messages_out_rate: float
    bytes_out_rate: float


def share_of(stats: Stats) -> Share:
    """The share of a topic with these statistics, persistent or not."""
    subscriptions = stats["subscriptions"].values()
    return Share(
        topics=1,
        subscriptions=len(subscriptions),
        producers=len(stats["publishers"]),
        consumers=sum(len(each["consumers"]) for each in subscriptions),
        backlog=sum(each["msgBacklog"] for each in subscriptions),
        blocked=int(stats.get("blockedEntries", 0) > 0),
        stored_bytes=stats["storageSize"],
        bytes_in=stats["bytesInCounter"],
        bytes_out=stats["bytesOutCounter"],
        messages_in_rate=stats["msgRateIn"],
        bytes_in_rate=stats["msgThroughputIn"],
        messages_out_rate=stats["msgRateOut"],
        bytes_out_rate=stats["msgThroughputOut"],
    )


class TopicFlows:
    """The counters' readings, kept from one scrape to the next."""

    def __init__(self, clock: Clock) -> None:
        self._topics = Flows(clock, _OF_TOPIC)
        self._consumers = Flows(clock, _OF_CONSUMER)

    def reading(self) -> "TopicSums":
        return TopicSums(self._topics, self._consumers)


class TopicSums:
    """Computes the shares of all topics, for one scrape."""

    def __init__(self, topics: Flows, consumers: Flows) -> None:
        self._topics = topics.reading()
        self._consumers = consumers.reading()

    async def of(self, topic: Topic, pace: Pace) -> tuple[Share, Flow]:
        """The topic's share, and the rates of entries written, read, and read from the disk."""
        ledger = topic.ledger
        counts = (
            topic.messages_in,
            topic.bytes_in,
            topic.writes.entries,
            ledger.read_entries,
            ledger.missed_entries,
        )
        messages_in, bytes_in, *stored = self._topics.of(topic.name, counts)
        messages_out = bytes_out = 0.0
        all_bytes_out = consumers = backlog = 0
        subscriptions = list(topic.subscriptions.values())
        for subscription in subscriptions:
            for consumer in list(subscription.consumers):
                rates = self._of_consumer(topic, subscription, consumer)
                messages_out, bytes_out = messages_out + rates[0], bytes_out + rates[1]
                all_bytes_out += consumer.bytes_out
                consumers += 1
                await pace.step()
            backlog += subscription.backlog
            await pace.step()
        share = Share(
            1,
            len(subscriptions),
            len(topic.producers),
            consumers,
            backlog,
            int(blocked_entries(topic) > 0),
            ledger.total_size_bytes + topic.buffer.aside_bytes,
            topic.bytes_in,
            all_bytes_out,
            messages_in,
            bytes_in,
            messages_out,
            bytes_out,
        )
        return share, tuple(stored)

    def _of_consumer(self, topic: Topic, subscription: Subscription, consumer: Consumer) -> Flow:
        request = consumer.request
        # Names instead of the consumer, because a kept reading must not keep objects alive.
        names = (subscription.name, consumer.name, request.address, consumer.consumer_id)
        counts = (consumer.messages_out, consumer.bytes_out)
        return self._consumers.of((topic.name, *names), counts)

    def keep(self) -> None:
        self._topics.keep()
        self._consumers.keep()
