"""A scrape of very many topics lets other tasks run in between."""

import asyncio
from typing import Any
from unittest.mock import MagicMock

import pybroker.testing
from pybroker.admin.routes.metrics import MetricsRoutes
from pybroker.admin.services import AdminServices
from pybroker.base.names import TopicName
from pybroker.broker.brokers.clusters import Clusters
from pybroker.broker.health import Health


def test_a_scrape_of_many_topics_is_made_a_little_at_a_time() -> None:
    async def scrape(running: Any) -> tuple[int, bytes]:
        for number in range(200):
            name = TopicName.parse(f"t-{number}")
            topic = await running.topics.get(name, create=True)
            await topic.subscription("s", None, {}, create=True)
        services = AdminServices(
            topics=running.topics,
            permissions=running.permissions,
            coordinators=running.coordinators,
            clock=running._clock,
            config=running._config,
            dynamic=running.dynamic,
            metadata=running._backend.metadata,
            ledgers=running.ledgers,
            clusters=Clusters(running._backend.metadata, "standalone"),
            service_url="pulsar://localhost:1",
            admin_url="http://localhost:1",
            connections=lambda: 0,
            publish=MagicMock(),
            gateway=MagicMock(),
            health=Health(running.ledgers),
        )

        async def text() -> bytes:
            return b"".join(await MetricsRoutes(services)._render())

        scraping = asyncio.ensure_future(text())
        turns = 0
        while not scraping.done():
            await asyncio.sleep(0)
            turns += 1
        return turns, scraping.result()

    with pybroker.testing.broker() as broker:
        turns, text = broker.call(scrape)
    assert turns >= 10
    assert b'pulsar_subscription_back_log{cluster="standalone",' in text
    assert text.count(b"pulsar_storage_size{") == 200
