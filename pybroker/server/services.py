"""What the handlers of a connection work with; the composition root fills it in."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from pybroker.broker.topics import Topics
from pybroker.config import BrokerConfig
from pybroker.runtime import Clock
from pybroker.server.publish_budget import PublishBudget
from pybroker.transaction.coordinators import Coordinators


@dataclass(slots=True)
class Services:
    topics: Topics
    coordinators: Coordinators
    clock: Clock
    config: BrokerConfig
    budget: PublishBudget
    # Tells this run of the broker from others in the names that it gives.
    boot_id: str
    # Of names for producers and consumers that come without one.
    name_numbers: Iterator[int] = field(default_factory=itertools.count)
