"""A broker for your tests, in this process: it starts in milliseconds and leaves nothing behind.

with pybroker.testing.broker() as b:
    client = pulsar.Client(b.service_url)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pybroker.base.configuration.config import BrokerConfig
from pybroker.testing.clock import VirtualClock
from pybroker.testing.running_broker import RunningBroker
from pybroker.testing.story import Story

__all__ = ["RunningBroker", "Story", "VirtualClock", "broker"]


@contextmanager
def broker(
    config: BrokerConfig | None = None,
    *,
    data_dir: Path | None = None,
    http: bool = False,
    faults: bool = True,
    kafka: bool = False,
    **settings: Any,
) -> Iterator[RunningBroker]:
    """A broker on free ports, in memory unless it has a `data_dir`; with `http` it serves the admin
    REST API. Without `faults` it has no fault points, and handles commands exactly as in
    production. With `kafka` it serves Kafka's clients, too, at its `kafka_bootstrap`.

    `settings` are fields of BrokerConfig: `broker(broker_deduplication_enabled=True)`. /metrics is
    not cached unless a setting says otherwise. Raises NeverStruck at the end if a strict rule of
    `faults` has not struck.
    """
    for_tests = {"broker_service_port": 0, "web_service_port": 0, "metrics_cache_ms": 0}
    if kafka:
        for_tests |= {"kafka_service_port": 0, "kafka_group_initial_rebalance_delay_ms": 0}
    config = replace(config or BrokerConfig(), **{**for_tests, **settings})
    running = RunningBroker(config, data_dir, http, faults)
    try:
        running.start()
        yield running
        if faults:
            running.faults.clear_and_check()
    finally:
        running.stop()
        running.release_ports()
