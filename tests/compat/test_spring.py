"""The program for Spring in docs/frameworks.md, as it stands there, is killed while it works."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
from documents import ROOT, blocks
from official_java import spring_jars

from pybroker.client import Client, Consumer, InitialPosition, SchemaType, Timeout, TopicSchema
from pybroker.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(900)]

PAGE: Final = ROOT / "docs/frameworks.md"
ORDERS: Final = 300
BEFORE_THE_KILL: Final = 50
RECEIVE_MS: Final = 60_000
NOTHING_MS: Final = 1_000


class Program:
    """The page's program and its settings, compiled."""

    def __init__(self, folder: Path) -> None:
        shown = {block.language: block.text for block in blocks(PAGE) if block.declared}
        self._classpath = ":".join(map(str, [folder, *spring_jars()]))
        source = folder / "Invoices.java"
        source.write_text(shown["java"])
        (folder / "application.properties").write_text(shown["properties"])
        compiler = ["javac", "-proc:none", "-parameters", "-cp", self._classpath, "-d", folder]
        subprocess.run([*compiler, source], check=True)

    @contextmanager
    def running(self, broker: BrokerProcess) -> Iterator[None]:
        """Killed at the end."""
        urls = {"client": broker.service_url, "admin": broker.admin_url}
        given = [f"--spring.pulsar.{name}.service-url={url}" for name, url in urls.items()]
        program = ["java", "-cp", self._classpath, "invoicing.Invoices", *given]
        with subprocess.Popen(program) as running:
            try:
                yield
            finally:
                running.kill()


def abort_open(broker: BrokerProcess) -> None:
    """They would end with their timeout."""
    base = f"{broker.admin_url}/admin/v3/transactions"
    for each in httpx.get(f"{base}/live").raise_for_status().json()["transactions"]:
        most, least = re.findall(r"\d+", each["txnId"])
        httpx.post(f"{base}/{most}/{least}/abort").raise_for_status()


def received(invoices: Consumer, count: int) -> list[str]:
    return [invoices.receive(RECEIVE_MS).data().decode() for _ in range(count)]


def test_each_order_has_one_invoice_although_the_program_is_killed(tmp_path: Path) -> None:
    program = Program(tmp_path)
    config = tmp_path / "broker.conf"
    config.write_text("brokerDeduplicationEnabled=true")
    texts = TopicSchema(SchemaType.STRING, name="String")
    with (
        BrokerProcess(tmp_path / "data", ["--config", str(config)]) as broker,
        Client(broker.service_url) as client,
    ):
        client.create_producer("invoices", schema=texts).close()
        invoices = client.subscribe("invoices", "check", initial_position=InitialPosition.Earliest)
        orders = client.create_producer("orders", schema=texts)
        for number in range(ORDERS):
            orders.send_async(b"%d" % number)
        orders.flush()
        with program.running(broker):
            found = received(invoices, BEFORE_THE_KILL)
        abort_open(broker)
        with program.running(broker):
            found += received(invoices, ORDERS - BEFORE_THE_KILL)
            with pytest.raises(Timeout):
                invoices.receive(NOTHING_MS)
    assert sorted(found) == sorted(f"invoice for {number}" for number in range(ORDERS))
