"""The topic as its subscriptions need it."""

from typing import Protocol

from pybroker.broker.dispatch.compacted_reader import CompactableTopic
from pybroker.broker.dispatch.delayed import Delays
from pybroker.broker.dispatch.entry_reader import ReadableTopic
from pybroker.broker.policies.dispatch_rate import Dispatched
from pybroker.broker.policies.limits import Limited
from pybroker.broker.subscriptions.transactional_acks import TransactionalTopic


class SubscribedTopic(
    ReadableTopic, TransactionalTopic, CompactableTopic, Limited, Dispatched, Protocol
):
    @property
    def ended(self) -> bool: ...
    @property
    def delays(self) -> Delays: ...
    def forget_subscription(self, name: str) -> None: ...
