"""GET /metrics: one rendering per second for all clients, produced in pieces."""

import asyncio
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from pybroker.admin.metrics.broker import BrokerSums, add_broker
from pybroker.admin.metrics.kafka import add_groups
from pybroker.admin.metrics.process import add_process
from pybroker.admin.metrics.scalable import add_scalable
from pybroker.admin.metrics.storage import StorageSamples
from pybroker.admin.metrics.table import METRICS
from pybroker.admin.metrics.topics import add_served, add_topic
from pybroker.admin.metrics.transactions import add_coordinator
from pybroker.admin.metrics.windows import Windows
from pybroker.admin.operation import Answer, DescribedRoute, flags
from pybroker.admin.routing import flag, route
from pybroker.admin.services import AdminServices
from pybroker.admin.shared_answer import Renderings, SharedAnswer
from pybroker.admin.stats.nonpersistent import nonpersistent_stats
from pybroker.admin.stats.rates import Rates
from pybroker.admin.stats.sums import TopicFlows, share_of
from pybroker.admin.stats.topic import PARTS_A_TURN, Wanted, topic_stats
from pybroker.base.json_schema import TEXT
from pybroker.base.metrics import (
    CONTENT_TYPE,
    OPENMETRICS,
    OPENMETRICS_CONTENT_TYPE,
    Exposition,
    as_openmetrics,
)
from pybroker.base.runtime import Pace

_WANTED: Final = Wanted(hashes=False)
_LIGHT_PARTS_A_TURN: Final = 4 * PARTS_A_TURN


class MetricsRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services
        self._rates = Rates(services.clock)
        self._windows = Windows(services.clock)
        self._flows = TopicFlows(services.clock)
        kept_s = services.config.metrics_cache_ms / 1000
        self._renderings = Renderings(self._render, kept_s)
        self._of_broker = Renderings(partial(self._render, with_topics=False), kept_s)
        self._took_s: float | None = None  # duration of the last rendering

    def routes(self) -> list[DescribedRoute]:
        samples = Answer(TEXT, media=CONTENT_TYPE)
        return [
            route("GET", path, self.metrics, samples, query=flags("topics"))
            for path in ("/metrics", "/metrics/")
        ]

    async def metrics(self, request: Request) -> Response:
        """Metrics of the broker and of each topic; only of the broker with ?topics=false."""
        with_topics = flag(request, "topics", default=True)
        renderings = self._renderings if with_topics else self._of_broker
        answer = (
            SharedAnswer(renderings, OPENMETRICS_CONTENT_TYPE, as_openmetrics)
            if _prefers_openmetrics(request.headers.get("accept", ""))
            else SharedAnswer(renderings, CONTENT_TYPE)
        )
        answer.headers["vary"] = "Accept"
        return answer

    async def of_broker(self) -> list[bytes]:
        """The metrics without those of topics, for OTLP."""
        return await self._render(with_topics=False)

    async def _render(self, with_topics: bool = True) -> list[bytes]:
        began_s, pace = asyncio.get_running_loop().time(), Pace(PARTS_A_TURN)
        await pace.turn()
        exposition = Exposition({"cluster": self._services.config.cluster_name}, METRICS)
        await self._add_all(exposition, pace, with_topics)
        pieces = []
        for piece in exposition.pieces():
            pieces.append(piece.encode())
            await pace.step(PARTS_A_TURN)
        if with_topics:
            self._took_s = asyncio.get_running_loop().time() - began_s
        return pieces

    async def _add_all(self, exposition: Exposition, pace: Pace, with_topics: bool) -> None:
        services, now_ms = self._services, self._services.clock.now_ms()
        light_pace = Pace(_LIGHT_PARTS_A_TURN)
        if self._took_s is not None:
            exposition.add("pybroker_metrics_render_seconds", self._took_s)
        lag_s = services.loop_lag_s if with_topics else services.live_loop_lag_s
        add_broker(exposition, services, self._windows, lag_s())
        add_scalable(exposition, services)
        await pace.turn()
        add_process(exposition)
        await pace.turn()
        sums = BrokerSums()
        storage = StorageSamples(exposition, self._rates, self._windows, with_topics)
        light = self._flows.reading()
        for topic in services.topics.loaded():
            if with_topics:
                stats = await topic_stats(topic, self._rates, now_ms, pace, _WANTED)
                add_topic(exposition, topic, stats)
                share = share_of(stats)
                storage.add_topic(topic, share, storage.rates_of(topic))
                await pace.step(1 + len(stats["subscriptions"]))
            else:
                share, rates = await light.of(topic, light_pace)
                storage.add_topic(topic, share, rates)
                await light_pace.step()
            sums.add(topic.name.namespace_name, share)
        if not with_topics:
            light.keep()
        for kept_nothing in services.topics.loaded_nonpersistent():
            stats = await nonpersistent_stats(kept_nothing, self._rates, pace, _WANTED)
            if with_topics:
                add_served(exposition, kept_nothing, stats)
            sums.add(kept_nothing.name.namespace_name, share_of(stats))
            await pace.step(1 + len(stats["subscriptions"]))
        sums.show(exposition, storage.totals)
        storage.add_namespaces()
        storage.add_storage(services.ledgers)
        await pace.turn()
        for coordinator in services.coordinators.served():
            add_coordinator(exposition, coordinator, self._windows, now_ms)
            await pace.step(PARTS_A_TURN)
        if (groups := services.kafka()) is not None:
            await add_groups(exposition, groups, pace, with_topics)


def _prefers_openmetrics(accept: str) -> bool:
    """Compares the greatest q of each format. `text/plain` also stands for clients that name
    neither.
    """
    qualities = {OPENMETRICS: 0.0, "text/plain": 0.0}
    for accepted in accept.split(","):
        media, *parameters = (part.strip() for part in accepted.lower().split(";"))
        if media in qualities:
            qualities[media] = max(qualities[media], _quality(parameters))
    return qualities[OPENMETRICS] > 0 and qualities[OPENMETRICS] >= qualities["text/plain"]


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
