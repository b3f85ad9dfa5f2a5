"""Deletes subscriptions that have been unused for a number of minutes.

A subscription is in use if a consumer is connected, or requested or acknowledged messages since the
last check. Time counts from the first check without use, so it starts over when a topic is loaded.
"""

import asyncio

from managed_ledger.housekeeper import Housekeeper
from pybroker.base.names import is_kept_by_its_name
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.nonpersistent.topic import NonPersistentTopic
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.rounds import Rounds
from pybroker.broker.policies.table import SUBSCRIPTION_EXPIRY
from pybroker.logs import audit


class SubscriptionExpiry:
    def __init__(self, housekeeper: Housekeeper, interval_s: float) -> None:
        self._rounds = Rounds[ServedTopic](
            housekeeper, interval_s, _wanted, _expire, Topic, NonPersistentTopic
        )

    def follow(self, topic: ServedTopic) -> None:
        self._rounds.follow(topic)


def _wanted(topic: ServedTopic) -> bool:
    kept = topic.name.system or is_kept_by_its_name(topic.name)
    return topic.policies[SUBSCRIPTION_EXPIRY] > 0 and not kept


async def _expire(topic: ServedTopic) -> None:
    now_s = asyncio.get_running_loop().time()
    for subscription in topic.each_subscription():
        if not _wanted(topic):
            return  # the policy was removed meanwhile
        if not subscription.durable:
            continue
        if subscription.consumers:
            subscription.times.in_use()
            continue
        idle_s = now_s - subscription.times.idle_since(now_s)
        if idle_s >= topic.policies[SUBSCRIPTION_EXPIRY] * 60:
            why = f"it was unused for {idle_s:.0f} s"
            with audit.acting_as(audit.Actor(audit.BROKER.who, why=why)):
                await topic.delete_subscription(subscription.name)
