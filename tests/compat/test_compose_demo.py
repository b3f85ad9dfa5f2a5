"""compose.yaml's profile `demo`, without docker: the commands of the shop and the pipeline."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from official_java import client_jars

from pybroker.client import Client, InitialPosition
from pybroker.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: Any = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())
BASKETS, ORDERS = 3, 30
PATIENCE_MS = 120_000


def words(name: str, places: dict[str, str]) -> list[str]:
    service = COMPOSE["services"][name]
    found = [*service["entrypoint"], *service["command"]]
    for container, here in places.items():
        found = [word.replace(container, here) for word in found]
    return found


def values(client: Client, topic: str) -> Iterator[Any]:
    """The received values, in order. Raises Timeout."""
    consumer = client.subscribe(topic, "audit", initial_position=InitialPosition.Earliest)
    while True:
        yield json.loads(consumer.receive(PATIENCE_MS).data())


def test_the_shop_s_orders_are_billed_once(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    broker = BrokerProcess(tmp_path / "data", ["--config", str(config)])
    own = f"127.0.0.1:{broker._port}"
    listeners = COMPOSE["configs"]["broker"]["content"].replace("broker:6650", own)
    config.write_text(listeners.replace("localhost:6650", f"localhost:{broker._port}"))
    places = {
        "/opt/pulsar-client": str(client_jars()[0].parent),
        "/opt/pybroker": str(ROOT),
        "broker:6650": own,
        "/checkpoint": str(tmp_path / "checkpoint"),
    }
    shop, pipeline = (words(name, places) for name in ("shop", "pipeline"))
    assert pipeline.pop(0) == "python"
    with (
        broker,
        (tmp_path / "pipeline.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, *pipeline], cwd=tmp_path, stdout=log, stderr=log
        ) as running,
    ):
        try:
            subprocess.run([*shop, str(BASKETS)], check=True, timeout=PATIENCE_MS / 1000)
            with Client(broker.service_url) as client:
                invoices = list(islice(values(client, "invoices"), ORDERS))
                assert sorted(each["order"] for each in invoices) == list(range(1, ORDERS + 1))
                owed, by_item = sum(each["cents"] for each in invoices), values(client, "revenue")
                booked = 0
                while booked < owed:
                    booked += next(by_item)["cents"]
                assert booked == owed
        finally:
            running.terminate()
