"""What a subscription needs of its topic."""

from typing import TYPE_CHECKING, Protocol

from pybroker.broker.dispatch.compacted_reader import CompactableTopic
from pybroker.broker.dispatch.delayed import Delays
from pybroker.broker.dispatch.entry_reader import ReadableTopic
from pybroker.broker.policies.dispatch_rate import Dispatched
from pybroker.broker.policies.limits import Limited
from pybroker.broker.transactional_acks import TransactionalTopic

if TYPE_CHECKING:
    from pybroker.broker.subscription import Subscription


class SubscribedTopic(
    ReadableTopic, TransactionalTopic, CompactableTopic, Limited, Dispatched, Protocol
):
    @property
    def ended(self) -> bool: ...
    @property
    def delays(self) -> Delays: ...
    @property
    def subscriptions(self) -> "dict[str, Subscription]": ...
    def deserted(self) -> None: ...
