"""`make cluster-kill-rounds ARGS=--kafka`: a transactional producer of Kafka's while bookies and
brokers are killed.

Two brokers with Kafka's listener, three bookies and ZooKeeper. confluent-kafka writes a record to
each partition of a topic in every transaction. A round kills a bookie or a broker with -9, waits
until more transactions are committed, and starts the server again. At the end the topic must have
each committed transaction whole and once, none that was aborted, and of those whose commit had no
answer all or nothing.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from broker_processes import BrokerProcess
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from servers import Cluster

from pybroker.testing.reserved_port import ReservedPort

TOPIC: Final = "orders"
PARTITIONS: Final = 4
COMMITS: Final = 5  # that a round waits for
WITHIN_S: Final = 120.0
TIMEOUT_S: Final = 10.0
GIVES_UP_S: Final = 20.0  # a client: librdkafka 2.16 may lose all connections, and makes no other
_LOOKS_EVERY_S: Final = 0.1


class KafkaBroker(BrokerProcess):
    """A broker on fixed ports, so that clients find it again."""

    def __init__(self, folder: Path, name: str, zookeeper: str) -> None:
        self._ports = [ReservedPort(), ReservedPort()]
        kafka = ReservedPort()
        super().__init__(folder, name, zookeeper, {"kafkaServicePort": kafka.number})

    def start(self, port: int = 0, http_port: int = 0) -> None:
        super().start(*(each.number for each in self._ports))


class Writer:
    """Transactions one after another, in a thread, whatever happens to the servers."""

    def __init__(self, bootstrap: str) -> None:
        self.committed: set[int] = set()
        self.unknown: set[int] = set()
        self.failure: BaseException | None = None
        self._settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": "writer",
            "transaction.timeout.ms": 30_000,
            "metadata.recovery.strategy": "none",
            "log_level": 0,
        }
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(2 * WITHIN_S)
        assert not self._thread.is_alive(), "the writer is stuck"
        if self.failure is not None:
            raise self.failure

    def _write(self) -> None:
        try:
            number, producer = 0, self._producer()
            while not self._over.is_set():
                number += 1
                try:
                    self._transaction(producer, number)
                except KafkaException:  # another producer takes over its id
                    self.unknown.add(number)
                    producer = self._producer()
        except BaseException as error:
            self.failure = error

    def _producer(self) -> Producer:
        producer = Producer(self._settings)
        _again(lambda: producer.init_transactions(TIMEOUT_S), WITHIN_S)
        return producer

    def _transaction(self, producer: Producer, number: int) -> None:
        """Raises KafkaException if it is not known whether it is committed."""
        producer.begin_transaction()
        try:
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, str(number), partition=partition)
            _again(lambda: producer.commit_transaction(TIMEOUT_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            _again(lambda: producer.abort_transaction(TIMEOUT_S))
        else:
            self.committed.add(number)


def _again(work: Callable[[], object], within_s: float = GIVES_UP_S) -> None:
    """Until it succeeds, or fails for good."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            work()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > until_s:
                raise
        else:
            return


def run(rounds: int, seed: int, folder: Path, say: Callable[[str], None]) -> list[str]:
    """A sentence for each broken promise."""
    rng = random.Random(seed)
    with Cluster() as storage:
        brokers = [KafkaBroker(folder, name, storage.zookeeper_address) for name in "ab"]
        bootstrap = ",".join(each.kafka_bootstrap for each in brokers)
        try:
            _create(bootstrap)
            writer = Writer(bootstrap)
            try:
                _wait_for_more(writer, brokers)
                for number in range(1, rounds + 1):
                    _round(number, rng, storage, brokers, writer, say)
            finally:
                writer.stop()
            faults = faults_in(_read(bootstrap), writer)
        finally:
            for broker in brokers:
                broker.kill()
    say(
        f"{rounds} rounds: {len(writer.committed)} transactions committed, "
        f"{len(writer.unknown)} without an answer; {len(faults)} promises broken"
    )
    return faults


def _create(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(WITHIN_S)


def _round(
    number: int,
    rng: random.Random,
    storage: Cluster,
    brokers: list[KafkaBroker],
    writer: Writer,
    say: Callable[[str], None],
) -> None:
    began_s = time.monotonic()
    if number % 2:
        bookie = rng.choice(storage.bookies)
        bookie.kill()
        _wait_for_more(writer, brokers)
        storage.start_again(bookie)
        killed = bookie.name
    else:
        broker = rng.choice(brokers)
        broker.kill()
        _wait_for_more(writer, [each for each in brokers if each is not broker])
        broker.start()
        killed = f"broker {broker.log.stem}"
    _wait_for_more(writer, brokers)
    say(f"round {number}: {killed} was killed; {time.monotonic() - began_s:.1f} s")


def _wait_for_more(writer: Writer, brokers: list[KafkaBroker]) -> None:
    """A broker that ends by itself, since its session is over, is started again."""
    wanted, until_s = len(writer.committed) + COMMITS, time.monotonic() + WITHIN_S
    while len(writer.committed) < wanted:
        for broker in brokers:
            if broker.process.poll() is not None:
                broker.start()
        if writer.failure is not None or time.monotonic() > until_s:
            logs = "\n".join(each.log.read_text()[-3000:] for each in brokers)
            raise RuntimeError(f"no more commits ({writer.failure}):\n{logs}")
        time.sleep(_LOOKS_EVERY_S)


def _read(bootstrap: str) -> Counter[tuple[int, int]]:
    """How often each transaction is in each partition, for who reads what is committed."""
    settings = {"group.id": "judge", "auto.offset.reset": "earliest", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 0} | settings)
    consumer.subscribe([TOPIC])
    found: Counter[tuple[int, int]] = Counter()
    ended: set[int | None] = set()
    until_s = time.monotonic() + WITHIN_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < until_s, f"only partitions {ended} were read to the end"
        record = consumer.poll(TIMEOUT_S)
        if record is None:
            continue
        if (error := record.error()) is None:
            found[int(record.value()), record.partition()] += 1
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(record.partition())
    consumer.close()
    return found


def faults_in(found: Counter[tuple[int, int]], writer: Any) -> list[str]:
    faults = [f"{place} is there {count} times" for place, count in found.items() if count > 1]
    parts = Counter(number for number, _ in found)
    faults += [f"{number} is torn" for number, count in parts.items() if count < PARTITIONS]
    faults += [f"{number} is lost" for number in writer.committed - parts.keys()]
    strange = parts.keys() - writer.committed - writer.unknown
    return faults + [f"{number} was aborted, and is there" for number in strange]
