"""A row of watched topic lists: many watchers of many topics are told of new topics."""

import time
import urllib.request

from figures import Figure, Target
from idle_topics import AT_ONCE, subscribe_frame, subscribe_to_all
from measured_broker import MeasuredBroker
from raw_connection import RawConnection, Type
from workload import Bench, measured

from pybroker.wire import pulsar_api_pb2 as pb

WATCHERS = 100
TOPICS = 10_000
NEW_TOPICS = 50
NAMESPACE = "public/default"
PATTERN = f"persistent://{NAMESPACE}/an-idle-.*"
_SETTINGS = (f"brokerMaxConnectionsPerIp={10 * WATCHERS}",)


def watched_topics(bench: Bench) -> list[Figure]:
    topics = bench.scaled(TOPICS)
    opening, told, telling, held_up = [], [], [], []
    for _ in range(bench.runs):
        with bench.broker("watchers", *_SETTINGS) as broker:
            subscribe_to_all(broker, topics)
            watchers: list[RawConnection] = []
            longest_turn_s(broker)
            spent = measured(broker, lambda found=broker, ws=watchers: open_all(found, ws, topics))
            opening.append(spent.cpu_us(WATCHERS) / 1000)
            held_up.append(1000 * longest_turn_s(broker))
            cpu_s, times = broker.cpu_s(), create_topics(broker, watchers, topics)
            told.append(1000 * sorted(times)[len(times) // 2])
            telling.append(1000 * (broker.cpu_s() - cpu_s) / NEW_TOPICS)
            for watcher in watchers:
                watcher.close()
    name = f"{WATCHERS} watchers of {topics:,} topics"
    return [
        Figure(f"{name}: opening one, broker CPU", "ms", opening),
        Figure(f"{name}: opening them, longest turn", "ms", held_up),
        Figure(f"{name}: one more, until all know", "ms", told, Target(100)),
        Figure(f"{name}: one more, broker CPU", "ms", telling),
    ]


def open_all(broker: MeasuredBroker, watchers: list[RawConnection], topics: int) -> None:
    for number in range(WATCHERS):
        watcher = RawConnection(broker.port)
        watch = pb.CommandWatchTopicList(
            request_id=1, watcher_id=number, namespace=NAMESPACE, topics_pattern=PATTERN
        )
        watcher.send(pb.BaseCommand(type=Type.WATCH_TOPIC_LIST, watchTopicList=watch))
        found = watcher.wait_for(Type.WATCH_TOPIC_LIST_SUCCESS)
        assert len(found.watchTopicListSuccess.topic) == topics
        watchers.append(watcher)


def create_topics(
    broker: MeasuredBroker, watchers: list[RawConnection], topics: int
) -> list[float]:
    """Create topics one by one; returns the time of each until all watchers were told."""
    creator, times = RawConnection(broker.port), []
    for number in range(topics + AT_ONCE, topics + AT_ONCE + NEW_TOPICS):
        started_s = time.perf_counter()
        creator.socket.sendall(subscribe_frame(number))
        for watcher in watchers:
            found = watcher.wait_for(Type.WATCH_TOPIC_UPDATE).watchTopicUpdate
            assert [topic[-6:] for topic in found.new_topics] == [f"{number:06d}"]
        times.append(time.perf_counter() - started_s)
    creator.close()
    return times


def longest_turn_s(broker: MeasuredBroker) -> float:
    """The longest turn of the event loop since the last call."""
    with urllib.request.urlopen(f"{broker.admin_url}/metrics/") as answer:
        lines = answer.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith("pybroker_loop_lag_seconds_max"))
    return float(line.rpartition(" ")[2])
