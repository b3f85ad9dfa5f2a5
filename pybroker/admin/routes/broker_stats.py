"""Statistics of the whole broker: those of all its topics, and its load report."""

import json
import resource
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pybroker.admin.operation import DescribedRoute
from pybroker.admin.routing import namespace_of, route
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import PROPERTIES, TEXTS
from pybroker.admin.shapes.topic_stats import TOPIC
from pybroker.admin.stats.rates import Rates
from pybroker.admin.stats.topic import PARTS_A_TURN, Stats, Wanted, topic_stats
from pybroker.base.json_schema import (
    COUNT,
    NUMBER,
    OBJECT,
    TEXT,
    TRUTH,
    fields,
    list_of,
    map_of,
    record,
)
from pybroker.base.runtime import Pace
from pybroker.base.version import version
from pybroker.broker.persistent.topic import Topic

_BASE: Final = "/admin/v2/broker-stats"
_WHOLE: Final = "0x00000000_0xffffffff"  # a namespace's only bundle

_LOAD_REPORT: Final = record(
    "LocalBrokerData",
    {
        **fields(TEXT, "webServiceUrl pulsarServiceUrl brokerVersionString"),
        **fields(TRUTH, "persistentTopicsEnabled nonPersistentTopicsEnabled"),
        **fields(COUNT, "numTopics numBundles lastUpdate"),
        "bundles": TEXTS,
    },
)


class BrokerStatsRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services
        self._rates = Rates(services.clock)

    def routes(self) -> list[DescribedRoute]:
        domains = map_of(map_of(TOPIC, most=None), most=None)
        by_namespace = map_of(map_of(domains, most=None), most=None)
        metric = record(
            "Metrics",
            {"metrics": map_of(NUMBER, most=None), "dimensions": PROPERTIES},
        )
        empty = record("", {})
        return [
            route("GET", f"{_BASE}/topics", self.topics, by_namespace),
            route("GET", f"{_BASE}/metrics", self.metrics, list_of(metric, most=None)),
            route("GET", f"{_BASE}/mbeans", self.nothing, list_of(OBJECT, most=0)),
            route("GET", f"{_BASE}/bookieops", self.no_fields, empty),
            route("GET", f"{_BASE}/allocator-stats/{{allocator:segment}}", self.no_fields, empty),
            route("GET", f"{_BASE}/load-report", self.load_report, _LOAD_REPORT),
            route(
                "GET",
                f"{_BASE}/broker-resource-availability/{{tenant:segment}}/{{namespace:segment}}",
                self.availability,
                map_of(record("ResourceUnit", {"resourceId": TEXT}), most=None),
            ),
        ]

    async def topics(self, _: Request) -> Response:
        """{namespace: {bundle: {"persistent": {topic: stats}}}} of the topics in memory."""
        return StreamingResponse(self._topics_as_json(), media_type="application/json")

    async def _topics_as_json(self) -> AsyncIterator[str]:
        """Encoded topic by topic, because there may be very many."""
        pace, before = Pace(PARTS_A_TURN), "{"
        await pace.turn()
        by_namespace: dict[str, list[Topic]] = {}
        for topic in self._services.topics.loaded():
            by_namespace.setdefault(topic.name.namespace_name, []).append(topic)
        for namespace, topics in sorted(by_namespace.items()):
            yield f'{before}{json.dumps(namespace)}:{{"{_WHOLE}":{{"persistent":'
            inner = "{"
            for topic in topics:
                stats = await self._stats(topic, pace)
                yield f"{inner}{json.dumps(str(topic.name))}:{json.dumps(stats)}"
                inner = ","
            yield "}}}"
            before = ","
        yield "{}" if before == "{" else "}"

    async def _stats(self, topic: Topic, pace: Pace) -> Stats:
        now_ms = self._services.clock.now_ms()
        stats = await topic_stats(topic, self._rates, now_ms, pace, Wanted(hashes=False))
        return stats | {"ownerBroker": self._services.broker_id}

    async def metrics(self, _: Request) -> list[dict[str, Any]]:
        """The broker's metrics, in Apache Pulsar's older form."""
        services = self._services
        counts = {
            "brk_connections_count": services.connections(),
            "brk_topics_count": len(services.topics.loaded()),
            "brk_memory_most_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        return [{"metrics": counts, "dimensions": {"broker": services.broker_id}}]

    async def nothing(self, _: Request) -> list[Any]:
        """Empty: there is no Java virtual machine."""
        return []

    async def no_fields(self, _: Request) -> dict[str, Any]:
        """Empty: there are no bookies and no allocator."""
        return {}

    async def load_report(self, _: Request) -> dict[str, Any]:
        """LocalBrokerData, as far as it applies to a single broker."""
        services = self._services
        return {
            "webServiceUrl": services.admin_url,
            "pulsarServiceUrl": services.service_url,
            "brokerVersionString": version(),
            "persistentTopicsEnabled": True,
            "nonPersistentTopicsEnabled": True,
            "numTopics": len(services.topics.loaded()),
            "numBundles": len(self._namespaces()),
            "bundles": [f"{namespace}/{_WHOLE}" for namespace in self._namespaces()],
            "lastUpdate": services.clock.now_ms(),
        }

    async def availability(self, request: Request) -> dict[str, Any]:
        """The brokers that could serve the namespace: this one."""
        self._services.topics.tenants.check_namespace(namespace_of(request))
        return {self._services.broker_id: {"resourceId": self._services.admin_url}}

    def _namespaces(self) -> list[str]:
        tenants = self._services.topics.tenants
        return [n for tenant in tenants.tenants() for n in tenants.namespaces(tenant)]
