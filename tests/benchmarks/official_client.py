"""The official Python client, or pybroker.client with the same API, as a load in its own process.

`official_client.py URL TOPIC JOB COUNT [pybroker.client]` prints "ready", waits for a line, does
the job, and prints the seconds and its own CPU as JSON.
"""

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

pulsar: Any = importlib.import_module(sys.argv[5] if len(sys.argv) > 5 else "pulsar")
PAYLOAD = bytes(100)


def produce(client: pulsar.Client, topic: str, count: int, batched: bool) -> Callable[[], None]:
    producer = client.create_producer(
        topic,
        batching_enabled=batched,
        batching_max_messages=1000,
        batching_max_publish_delay_ms=5,
        max_pending_messages=5000,
        block_if_queue_full=True,
    )

    def failed(result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            raise RuntimeError(f"A message was not published: {result}")

    def run() -> None:
        for _ in range(count):
            producer.send_async(PAYLOAD, failed)
        producer.flush()

    return run


def consume(client: pulsar.Client, topic: str, count: int) -> Callable[[], None]:
    consumer = client.subscribe(topic, "official", initial_position=pulsar.InitialPosition.Earliest)

    def run() -> None:
        for received in range(1, count + 1):
            message = consumer.receive(timeout_millis=10_000)
            if received % 1000 == 0:
                consumer.acknowledge_cumulative(message)

    return run


def receive(client: pulsar.Client, topic: str, count: int) -> Callable[[], None]:
    """Receive and acknowledge, one by one."""
    consumer = client.subscribe(
        topic, pulsar.__name__, initial_position=pulsar.InitialPosition.Earliest
    )

    def run() -> None:
        for _ in range(count):
            consumer.acknowledge(consumer.receive())

    return run


def connected(url: str) -> pulsar.Client:
    if pulsar.__name__ != "pulsar":
        return pulsar.Client(url)
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def main() -> None:
    url, topic, job, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    client = connected(url)
    if job == "receive":
        run = receive(client, topic, count)
    elif job == "consume":
        run = consume(client, topic, count)
    else:
        run = produce(client, topic, count, batched=job == "produce-batched")
    print("ready", flush=True)
    sys.stdin.readline()
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    run()
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"seconds": seconds, "cpu_s": cpu_s}), flush=True)
    sys.stdin.readline()
    client.close()


if __name__ == "__main__":
    main()
