"""A row of the web console: each page beside many topics and open transactions."""

import re
import time
from contextlib import closing
from http.client import HTTPConnection
from statistics import median
from typing import Final

from figures import Figure, Target
from idle_topics import subscribe_to_all
from measured_broker import MeasuredBroker
from transactions import COORDINATORS, publishing
from workload import Bench, measure

TOPICS: Final = 10_000
OPEN: Final = 1_000
LOOKS: Final = 5
SETTLE_S: Final = 3.0
TOPIC: Final = "persistent://public/default/with-open-transactions"
_IDLE: Final = "/console/topics/persistent/public/default/an-idle-topic-000007"
_BUSY: Final = "/console/topics/persistent/public/default/with-open-transactions"
PAGES: Final = {
    "overview": "/console",
    "topics": "/console/topics",
    "figures of topics": "/console/topics?figures=1",
    "topics, searched": "/console/topics?search=9999",
    "topic": _BUSY,
    "messages": f"{_BUSY}/messages",
    "policies": f"{_IDLE}/policies",
    "storage": f"{_IDLE}/storage",
    "subscription": f"{_IDLE}/subscriptions/subscription",
    "transactions": "/console/transactions",
    "connections": "/console/connections",
    "tenants": "/console/tenants",
    "namespace": "/console/tenants/public/default",
    "pipelines": "/console/pipelines",
    "configuration": "/console/configuration",
    "logs": "/console/logs",
}
_TARGET: Final = Target(300)


def console_pages(bench: Bench) -> list[Figure]:
    """Milliseconds until a page is there: the process's first, and each page's median."""
    topics, first, overview = bench.scaled(TOPICS), [], []
    taken: dict[str, list[float]] = {name: [] for name in (*PAGES, "transaction")}
    for _ in range(bench.runs):
        with bench.broker("console", "maxActiveTransactionsPerConnection=0") as broker:
            subscribe_to_all(broker, topics)
            pump = publishing(broker, TOPIC, OPEN, OPEN, COORDINATORS, None)
            measure(broker, [pump])
            time.sleep(SETTLE_S)
            first.append(opened_ms(broker, "/console/configuration")[0])
            overview.append(opened_ms(broker, "/console")[0])
            found = re.search(r"/console/transactions/\d+/\d+", opened_ms(broker, _BUSY)[1])
            assert found is not None
            for name, path in {**PAGES, "transaction": found[0]}.items():
                taken[name].append(median(opened_ms(broker, path)[0] for _ in range(LOOKS)))
            pump.connection.close()
    beside = f"beside {topics:,} topics and {OPEN:,} open transactions"
    return [
        Figure(f"console's first page {beside}", "ms", first, _TARGET),
        Figure("console, overview, nobody looked lately", "ms", overview, _TARGET),
        *(Figure(f"console, {name}", "ms", runs, _TARGET) for name, runs in taken.items()),
    ]


def opened_ms(broker: MeasuredBroker, path: str) -> tuple[float, str]:
    """How long it took, and the page."""
    with closing(HTTPConnection(broker.admin_url.removeprefix("http://"))) as connection:
        started_s = time.perf_counter()
        connection.request("GET", path, headers={"Accept": "text/html"})
        answer = connection.getresponse()
        page = answer.read().decode()
        taken_ms = 1000 * (time.perf_counter() - started_s)
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}")
    return taken_ms, page
