"""A row of Spark: a pattern of 10,000 topics with three messages each, as a stream and as a frame.

CPU counts the whole pipeline, as in spark_reading: the JVM, its Python processes and the broker.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import Figure, Target
from measured_broker import MeasuredBroker
from spark_reading import cpu_s, session
from workload import Bench

from pybroker.client.aio import Client

TOPICS = 10_000
MESSAGES = 3
AT_ONCE = 64
PREFIX = "persistent://public/default/one-of-many-"
SETTINGS = (
    "brokerDeleteInactiveTopicsEnabled=false",
    "defaultRetentionTimeInMinutes=-1",
    "defaultRetentionSizeInMB=-1",
)


def many_topics(bench: Bench) -> list[Figure]:
    topics = bench.scaled(TOPICS)
    with bench.broker("spark-topics", *SETTINGS) as broker:
        asyncio.run(fill(broker.service_url, topics))
        spark = session()
        options = {"service.url": broker.service_url, "topicsPattern": PREFIX + ".*"}
        try:
            return measured(bench, broker, topics, Queries(spark, options, topics, bench.folder))
        finally:
            spark.stop()


async def fill(service_url: str, topics: int) -> None:
    at_once = asyncio.Semaphore(AT_ONCE)

    async def fill_one(client: Client, number: int) -> None:
        async with at_once:
            producer = await client.create_producer(f"{PREFIX}{number:06d}")
            for message in range(MESSAGES):
                await producer.send(b"message %d of topic %d" % (message, number))
            await producer.close()

    async with Client(service_url) as client:
        await asyncio.gather(*(fill_one(client, number) for number in range(topics)))


class Queries:
    def __init__(self, spark: Any, options: dict[str, str], topics: int, folder: Path) -> None:
        self._spark = spark
        self._options = options
        self._rows = topics * MESSAGES
        self._folder = folder
        self._count = 0

    def frame(self) -> None:
        found = self._spark.read.format("pulsar").options(**self._options).load().count()
        assert found == self._rows, f"{found} rows, and not {self._rows}"

    def first_batch(self) -> None:
        """Start a new stream and read everything."""
        self._count += 1
        source = self._spark.readStream.format("pulsar").options(**self._options)
        query = (
            source.option("startingOffsets", "earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._folder / f"topics-{self._count}"))
            .start()
        )
        query.processAllAvailable()
        found = sum(progress["numInputRows"] for progress in query.recentProgress)
        query.stop()
        assert found == self._rows, f"{found} rows, and not {self._rows}"


def measured(bench: Bench, broker: MeasuredBroker, topics: int, queries: Queries) -> list[Figure]:
    figures = []
    runs: tuple[tuple[str, Callable[[], None]], ...] = (
        ("readStream, to the first batch's end", queries.first_batch),
        ("spark.read", queries.frame),
    )
    queries.frame()  # Warms up the JVM and the Python processes.
    for name, run in runs:
        wall, cpu = [], []
        for _ in range(bench.runs):
            before, started = cpu_s(broker), time.perf_counter()
            run()
            wall.append(time.perf_counter() - started)
            cpu.append((cpu_s(broker) - before) * 1000 / topics)
        figures.append(Figure(f"{name}, {topics:,} topics", "s", wall, Target(20)))
        figures.append(Figure(f"{name}, {topics:,} topics: CPU of a topic", "ms", cpu))
    return figures
