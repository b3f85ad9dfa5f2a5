"""A live cluster moves from Apache Pulsar's broker to pybroker and back, bundle by bundle.

An official client that knows both brokers publishes and consumes all the time, without a word about
the move. Deduplication is on: the new broker of a bundle drops messages that the client resends
after a move.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import httpx
import pulsar
import pytest
from both_brokers import AnyBroker, Two, admin, both, take, two  # noqa: F401
from broker_processes import wait_until

from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import Bundle

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(600)]
NAMESPACE = "public/rolling"
TOPIC = f"persistent://{NAMESPACE}/orders"
PARTITIONS = 8
BUNDLES = 4
PRODUCERS = 3
UNANSWERED = 200
BETWEEN_MOVES = 300  # messages acknowledged
WAIT_MS = 60_000


class Load:
    """Producers and a consumer in threads; records the acknowledged and the received messages."""

    def __init__(self, client: pulsar.Client) -> None:
        self.client = client
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self.acknowledged: list[bytes] = []
        self.refused: list[str] = []
        self.received: Counter[bytes] = Counter()
        self.consumer = client.subscribe(
            TOPIC,
            "all",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )

    def start(self) -> None:
        for number in range(PRODUCERS):
            self._start(lambda number=number: self._publish(f"producer-{number}"))
        self._start(self._consume)

    def wait_for_more(self, count: int = BETWEEN_MOVES) -> None:
        """Wait until `count` more messages are acknowledged and `count` more have arrived."""
        with self._changed:
            published, received = len(self.acknowledged) + count, len(self.received) + count
            done = self._changed.wait_for(
                lambda: len(self.acknowledged) >= published and len(self.received) >= received,
                WAIT_MS / 1000,
            )
        assert done, f"{len(self.acknowledged)} acknowledged, {len(self.received)} received"

    def stop(self) -> None:
        """Stop once every acknowledged message has been received."""
        self._ending.set()
        for thread in self._threads[:PRODUCERS]:
            thread.join(WAIT_MS / 1000)
        with self._changed:
            self._changed.wait_for(
                lambda: len(self.received) >= len(self.acknowledged), WAIT_MS / 1000
            )
        self.consumer.close()
        self._threads[-1].join(WAIT_MS / 1000)

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()

    def _publish(self, name: str) -> None:
        producer = self.client.create_producer(
            TOPIC,
            producer_name=name,
            send_timeout_millis=0,
            max_pending_messages=1000,
            batching_enabled=True,
            batching_max_publish_delay_ms=5,
        )
        free = threading.Semaphore(UNANSWERED)

        def answered(content: bytes) -> Callable[[pulsar.Result, object], None]:
            def noted(result: pulsar.Result, _: object) -> None:
                free.release()
                with self._changed:
                    if result == pulsar.Result.Ok:
                        self.acknowledged.append(content)
                    else:
                        self.refused.append(f"{content!r}: {result}")
                    self._changed.notify_all()

            return noted

        for number in itertools.count():
            if self._ending.wait(0.005):
                break
            free.acquire()
            content = b"%s %d" % (name.encode(), number)
            producer.send_async(content, answered(content), partition_key=str(number % 64))
        producer.flush()
        producer.close()

    def _consume(self) -> None:
        while True:
            try:
                message = self.consumer.receive()
                self.consumer.acknowledge(message)
            except pulsar.PulsarException:
                return  # the consumer was closed
            with self._changed:
                self.received[message.data()] += 1
                self._changed.notify_all()


@pytest.fixture
def load(two: Two) -> Iterator[Load]:  # noqa: F811
    admin(two.apache, "PUT", f"namespaces/{NAMESPACE}", {"bundles": {"numBundles": BUNDLES}})
    admin(two.apache, "POST", f"namespaces/{NAMESPACE}/deduplication", True)
    keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    admin(two.apache, "POST", f"namespaces/{NAMESPACE}/retention", keep)
    admin(two.apache, "PUT", f"{TOPIC.replace('://', '/')}/partitions", PARTITIONS)
    wait_until(lambda: NAMESPACE in admin(two.ours, "GET", "namespaces/public"))
    urls = [two.apache.service_url, two.ours.service_url.removeprefix("pulsar://")]
    client = pulsar.Client(
        ",".join(urls),
        operation_timeout_seconds=60,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    for partition in range(PARTITIONS):
        take(two.apache, f"{TOPIC}-partition-{partition}")
    yield Load(client)
    client.close()
    print(f"log of our broker:\n{two.ours.log.read_text()[-20_000:]}")  # shown if the test fails


def owner_of(topic: str, asked: AnyBroker) -> str | None:
    """The URL of the broker that serves the topic; if none does, the asked broker takes it. None
    while the topic moves.
    """
    url = f"{asked.admin_url}/lookup/v2/topic/{topic.replace('://', '/')}"
    authoritative = {"authoritative": "true"}
    found = httpx.get(url, params=authoritative, follow_redirects=True, timeout=30)
    return found.json()["brokerUrl"] if found.is_success else None


def bundles(broker: AnyBroker) -> list[str]:
    edges = admin(broker, "GET", f"namespaces/{NAMESPACE}/bundles")["boundaries"]
    return [f"{low}_{high}" for low, high in itertools.pairwise(edges)]


def topics_of(bundle: str) -> list[str]:
    low, high = (int(edge, 16) for edge in bundle.split("_"))
    names = [f"{TOPIC}-partition-{partition}" for partition in range(PARTITIONS)]
    return [each for each in names if Bundle(NAMESPACE, low, high).holds(TopicName.parse(each))]


def move(bundle: str, source: AnyBroker, target: AnyBroker) -> None:
    """Move a bundle as docs/cluster.md describes. If a client's lookup reaches a broker of Apache
    Pulsar first, that broker owns the bundle again and must unload it once more.
    """
    topics = topics_of(bundle)
    assert topics, f"{bundle} has no topics"
    path = f"{source.admin_url}/admin/v2/namespaces/{NAMESPACE}/{bundle}/unload"
    destination = {"destinationBroker": target.admin_url.removeprefix("http://")}

    def moved() -> bool:
        owner = owner_of(topics[0], target)
        if owner == source.service_url:
            answer = httpx.put(path, params=destination, timeout=60)
            print(f"unload {bundle}: {answer.status_code} {answer.text}")
            owner = owner_of(topics[0], target)
        print(f"{bundle} is served by {owner}")
        return owner == target.service_url

    wait_until(moved)
    wait_until(lambda: {owner_of(each, target) for each in topics} == {target.service_url})


def stored(client: pulsar.Client) -> list[bytes]:
    """All messages of the topic's partitions."""
    found = []
    for partition in range(PARTITIONS):
        reader = client.create_reader(f"{TOPIC}-partition-{partition}", pulsar.MessageId.earliest)
        while reader.has_message_available():
            found.append(reader.read_next(WAIT_MS).data())
        reader.close()
    return found


def test_bundles_go_to_ours_and_back_under_load(two, load):  # noqa: F811
    load.start()
    load.wait_for_more()
    for source, target in ((two.apache, two.ours), (two.ours, two.apache)):
        for bundle in bundles(source):
            move(bundle, source, target)
            load.wait_for_more()
    load.stop()
    assert load.refused == []
    assert load.received.keys() >= set(load.acknowledged)
    assert sorted(stored(load.client)) == sorted(load.acknowledged), "lost, or doubled"
