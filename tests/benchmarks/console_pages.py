"""Rows of the web console and of /metrics: each page and a scrape, with many topics and open
transactions; and publishing while pages stay open.
"""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from statistics import median
from typing import Final

from figures import Figure, Target
from idle_topics import cpu_percent, subscribe_to_all
from measured_broker import MeasuredBroker
from transactions import COORDINATORS, publishing
from watchers import longest_turn_s
from workload import Bench, Load, Spent, measure, new_topic, publish

TOPICS: Final = 10_000
OPEN: Final = 1_000
LOOKS: Final = 5
SETTLE_S: Final = 3.0
SCRAPES: Final = 3
KEPT_S: Final = 1.5  # longer than an answer of /metrics is cached
PUBLISHED: Final = 100_000
IDLE: Final = 1_000
PAIRS: Final = 60  # of runs of a third of a second: single runs differ by a third
PAUSE_S: Final = 0.8  # excludes the opening of pages
LIVE: Final = ("/console/overview/live", "/console/transactions/live/rows")
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
    """Milliseconds until a page has arrived: the first page of the process, and each page's median;
    and the longest turn of the broker's event loop during a scrape of all topics.
    """
    topics, first, overview, turns = bench.scaled(TOPICS), [], [], []
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
            longest_turn_s(broker)
            for _ in range(SCRAPES):  # each reports the time since the previous one began
                time.sleep(KEPT_S)
                turns.append(1000 * longest_turn_s(broker))
            pump.connection.close()
    beside = f"beside {topics:,} topics and {OPEN:,} open transactions"
    return [
        Figure(f"console's first page {beside}", "ms", first, _TARGET),
        Figure("console, overview, nobody looked lately", "ms", overview, _TARGET),
        *(Figure(f"console, {name}", "ms", runs, _TARGET) for name, runs in taken.items()),
        Figure(f"scrape {beside}: longest turn", "ms", turns, Target(20)),
    ]


def opened_ms(broker: MeasuredBroker, path: str) -> tuple[float, str]:
    """The duration in ms, and the page."""
    with closing(HTTPConnection(broker.admin_url.removeprefix("http://"))) as connection:
        started_s = time.perf_counter()
        connection.request("GET", path, headers={"Accept": "text/html"})
        answer = connection.getresponse()
        page = answer.read().decode()
        taken_ms = 1000 * (time.perf_counter() - started_s)
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}")
    return taken_ms, page


def publishing_beside(bench: Bench) -> list[Figure]:
    """The same messages with and without open pages, alternately; and the cost of open pages on an
    otherwise idle broker, which is more reliable on a shared machine.
    """
    load = Load(bench.scaled(PUBLISHED), 1, 1000, 10_000)
    costs: dict[bool, list[Spent]] = {False: [], True: []}
    with bench.broker("console-beside") as broker:
        subscribe_to_all(broker, bench.scaled(IDLE))
        idle = cpu_percent(broker)
        with open_pages(broker):
            watched = [cpu_percent(broker) - idle for _ in range(bench.runs)]
        publish(broker, new_topic(), load)  # warms the broker up
        for run in range(2 * PAIRS):
            is_open = run % 4 in (1, 2)  # each comes first in half of the pairs
            with open_pages(broker) if is_open else nullcontext():
                time.sleep(PAUSE_S)
                costs[is_open].append(publish(broker, new_topic(), load))
    pairs = list(zip(costs[False], costs[True], strict=True))
    beside = f"publish beside {len(LIVE)} open pages of the console"
    cpu = [100 * (opened.cpu_s / alone.cpu_s - 1) for alone, opened in pairs]
    slower = [100 * (opened.seconds / alone.seconds - 1) for alone, opened in pairs]
    return [
        Figure(f"{len(LIVE)} open pages of the console: broker CPU", "%", watched, Target(5)),
        Figure(f"{beside}: more broker CPU", "%", cpu, Target(5)),
        Figure(f"{beside}: longer", "%", slower, Target(5)),
    ]


@contextmanager
def open_pages(broker: MeasuredBroker) -> Iterator[None]:
    """Keep the event streams of pages open; threads read them."""
    with ExitStack() as stack:
        for path in LIVE:
            address = broker.admin_url.removeprefix("http://")
            connection = stack.enter_context(closing(HTTPConnection(address)))
            connection.request("GET", path, headers={"Accept": "text/event-stream"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"{path}: {answer.status}")
            reading = threading.Thread(target=_read_all, args=(answer,), daemon=True)
            reading.start()
            stack.callback(reading.join)
            # Closing alone would wait for the page's next event, because the thread is in a read.
            stack.callback(connection.sock.shutdown, socket.SHUT_RDWR)
        yield


def _read_all(answer: HTTPResponse) -> None:
    with suppress(OSError, ValueError, AttributeError, HTTPException):  # closed meanwhile
        while answer.read1(65536):
            pass
