"""Policies for users' topics do not act on topics that brokers need, of either kind."""

from types import SimpleNamespace
from typing import Any

import pytest

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName
from pybroker.broker.policies import expiry, quotas, subscription_expiry

USERS = ("orders", "orders-partition-1", "__change_events_of_mine", "pulsar/shop/orders")
BROKERS = (
    "__change_events",
    "__change_events-partition-0",
    "acme/shop/__transaction_buffer_snapshot",
    "acme/shop/__transaction_buffer_snapshot_segments-partition-3",
    "acme/shop/__transaction_buffer_snapshot_indexes",
    "pulsar/system/anything",
)


class Everything:
    """Each policy is set."""

    config = BrokerConfig()

    def __getitem__(self, policy: object) -> int:
        return 5

    def made(self, of: object) -> bool:
        return True


@pytest.mark.parametrize("module", [expiry, quotas, subscription_expiry])
def test_messages_and_subscriptions_of_system_topics_do_not_expire(module: Any) -> None:
    def acts_on(name: str) -> bool:
        topic = SimpleNamespace(name=TopicName.parse(name), policies=Everything())
        return bool(module._wanted(topic))

    assert all(map(acts_on, USERS))
    assert not any(map(acts_on, BROKERS))
