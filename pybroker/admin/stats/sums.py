"""What the broker's sums need of a topic: some of its statistics, at a tenth of their price."""

from typing import Final

from pybroker.admin.stats.blocking import blocked_entries
from pybroker.admin.stats.flows import Flow, Flows
from pybroker.admin.stats.topic import Stats
from pybroker.base.runtime import Clock, Pace
from pybroker.broker.consumer import Consumer
from pybroker.broker.subscription import Subscription
from pybroker.broker.topic import Topic

_OF_TOPIC: Final = 5  # messages and bytes that came in; entries written, read, read from the disk
_OF_CONSUMER: Final = 2  # messages and bytes


class TopicFlows:
    """Kept from one scrape to the next."""

    def __init__(self, clock: Clock) -> None:
        self._topics = Flows(clock, _OF_TOPIC)
        self._consumers = Flows(clock, _OF_CONSUMER)

    def reading(self) -> "TopicSums":
        return TopicSums(self._topics, self._consumers)


class TopicSums:
    """Of all topics, for one scrape."""

    def __init__(self, topics: Flows, consumers: Flows) -> None:
        self._topics = topics.reading()
        self._consumers = consumers.reading()

    async def of(self, topic: Topic, pace: Pace) -> tuple[Stats, Flow]:
        """Fields of `topic_stats`, and the rates of entries written, read, and read from the
        disk.
        """
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
        all_bytes_out = 0
        subscriptions = {}
        for name, subscription in list(topic.subscriptions.items()):
            for consumer in list(subscription.consumers):
                rates = self._of_consumer(topic, subscription, consumer)
                messages_out, bytes_out = messages_out + rates[0], bytes_out + rates[1]
                all_bytes_out += consumer.bytes_out
                await pace.step()
            subscriptions[name] = {
                "msgBacklog": subscription.backlog,
                "consumers": subscription.consumers,
            }
            await pace.step()
        stats = {
            "msgRateIn": messages_in,
            "msgThroughputIn": bytes_in,
            "msgRateOut": messages_out,
            "msgThroughputOut": bytes_out,
            "bytesInCounter": topic.bytes_in,
            "bytesOutCounter": all_bytes_out,
            "storageSize": ledger.total_size_bytes + topic.buffer.aside_bytes,
            "blockedEntries": blocked_entries(topic),
            "publishers": topic.producers.all(),
            "subscriptions": subscriptions,
        }
        return stats, tuple(stored)

    def _of_consumer(self, topic: Topic, subscription: Subscription, consumer: Consumer) -> Flow:
        request = consumer.request
        # Names, not the consumer: what is kept must not keep objects alive.
        names = (subscription.name, consumer.name, request.address, consumer.consumer_id)
        counts = (consumer.messages_out, consumer.bytes_out)
        return self._consumers.of((topic.name, *names), counts)

    def keep(self) -> None:
        self._topics.keep()
        self._consumers.keep()
