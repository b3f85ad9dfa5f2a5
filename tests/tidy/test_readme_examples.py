"""The first examples of README and docs/first-minute.md run unchanged, in this process."""

import re
from pathlib import Path

import pulsar
import pytest

import pybroker.testing

ROOT = Path(__file__).resolve().parents[2]
URL = "pulsar://localhost:6650"


def only_example(document: str) -> str:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return str(example)


OFFICIAL = only_example("docs/first-minute.md")
TRANSACTIONS = only_example("README.md")


def run(example: str, service_url: str) -> None:
    assert URL in example
    exec(compile(example.replace(URL, service_url), "README.md", "exec"), {})


def messages(client: pulsar.Client, topic: str, subscription: str, count: int) -> list[bytes]:
    """The next `count` messages; asserts that there are no more."""
    consumer = client.subscribe(
        topic, subscription, initial_position=pulsar.InitialPosition.Earliest
    )
    found = [consumer.receive(timeout_millis=30_000).data() for _ in range(count)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=300)
    consumer.close()
    return found


def test_the_official_client_says_hello() -> None:
    with pybroker.testing.broker() as broker:
        run(OFFICIAL, broker.service_url)
        assert broker.backlog("persistent://public/default/greetings", "readers") == 0


def test_an_order_becomes_an_invoice_and_a_debit() -> None:
    with pybroker.testing.broker() as broker:
        client = pulsar.Client(
            broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        run(TRANSACTIONS, broker.service_url)
        assert messages(client, "invoices", "test", 1) == [b"invoice for one lamp"]
        assert messages(client, "ledger", "test", 1) == [b"debit"]
        assert messages(client, "orders", "billing", 0) == []
        client.close()
