"""The administrator of a cluster judges what its own consumers receive."""

import asyncio
import random
from types import SimpleNamespace

from brokers.administering import Administrator
from checks.history import History

VALUE = "administrator#0/0.1"


class ConsumerOfOne:
    def __init__(self, subscription):
        self.subscription = subscription

    async def receive(self, timeout_millis):
        return SimpleNamespace(data=VALUE.encode)

    async def close(self):
        self.subscription.remove(self)


class ClientOfOneTopic:
    """A topic with one message and an Exclusive subscription, whose consumers reconnect."""

    def __init__(self):
        self.subscription = []

    async def subscribe(self, topic, subscription_name, **options):
        assert not self.subscription, "another consumer has the subscription"
        self.subscription.append(ConsumerOfOne(self.subscription))
        return self.subscription[0]


def administrator():
    world = SimpleNamespace(now=0.0, stream=random.Random)
    made = Administrator(world, History(), "administrator", cluster=None)
    made.left = 3

    async def create():
        """The topic is created again before consumers of the former one reconnect."""

    async def fill(client):
        made.confirmed.append(VALUE)

    made._create, made._fill = create, fill
    return made


def test_a_consumer_stays_while_its_topic_is_deleted_and_leaves_before_the_next_one_subscribes():
    """Otherwise a former consumer received what the next one waited for (seed 971050)."""
    client, judge, attached = ClientOfOneTopic(), administrator(), []

    async def delete():
        attached.append(len(client.subscription))
        return True

    judge._delete = delete
    asyncio.run(judge.work(client))
    assert attached == [1, 1, 1]
    assert judge.history.failures == []
