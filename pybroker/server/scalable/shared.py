"""What all connections share for the V5 SDK's commands; made when the first of them arrives."""

from collections import Counter

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.runtime import Clock
from pybroker.broker.scalable.controllers import Controllers
from pybroker.broker.scalable.layouts import Layouts
from pybroker.broker.scalable.namespaces import ScalableTopicWatches
from pybroker.broker.topics import Topics
from pybroker.server.scalable.coordinator_places import CoordinatorPlaces


class Scalable:
    def __init__(self, topics: Topics, clock: Clock, config: BrokerConfig) -> None:
        self.layouts = Layouts(topics, clock)
        grace_s = config.scalable_topic_consumer_session_grace_period_seconds
        self.controllers = Controllers(self.layouts, topics, grace_s)
        self.coordinators = CoordinatorPlaces(topics)
        self.watches = ScalableTopicWatches(topics.tenants, topics.scalable)
        topics.scalable.measures.watches = self._watches

    def _watches(self) -> Counter[str]:
        return Counter({"layout": self.layouts.watches, "namespace": self.watches.count})

    async def close(self) -> None:
        await self.coordinators.close()
        await self.watches.close()
        await self.controllers.close()
        await self.layouts.close()
