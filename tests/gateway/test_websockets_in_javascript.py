"""The WebSocket API through ws, as Apache Pulsar's examples for Node.js: docs/websocket.md."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import blocks

import pybroker.testing
from pybroker.client import Client, InitialPosition
from pybroker.testing import RunningBroker

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs/websocket.md"
PRODUCER = """
const WebSocket = require("ws");
const url = "ws://localhost:8080/ws/v2/producer/persistent/public/default/my-topic";
const ws = new WebSocket(url);
let receipts = 0;

ws.on("open", () => {
  for (let number = 0; number < 100; number++) {
    const payload = Buffer.from(`message ${number}`).toString("base64");
    ws.send(JSON.stringify({ payload, key: `k${number}`, context: `${number}` }));
  }
});
ws.on("message", (text) => {
  const receipt = JSON.parse(text);
  if (receipt.result !== "ok" || receipt.context !== `${receipts}`) process.exit(1);
  if (++receipts === 100) ws.close();
});
"""


READER = """
const WebSocket = require("ws");
const topic = "persistent/public/default/my-topic";
const path = `/ws/v2/reader/${topic}?messageId=earliest&receiverQueueSize=2`;
const ws = new WebSocket(`ws://localhost:8080${path}`);

ws.on("message", (text) => {
  const message = JSON.parse(text);
  console.log(Buffer.from(message.payload, "base64").toString());
  ws.send(JSON.stringify({ messageId: message.messageId }));
});
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ws installed."""
    folder = tmp_path_factory.mktemp("node")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "ws@8"]
    subprocess.run(install, cwd=folder, check=True, timeout=200)
    return folder


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as running:
        yield running


def run(node: Path, broker: RunningBroker, script: str, until: str = "") -> str:
    """Runs the script to its end, or until its output ends with `until`."""
    address = broker.admin_url.removeprefix("http://")
    text = script.replace("localhost:8080", address)
    program = subprocess.Popen(
        ["node", "-e", text], cwd=node, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    said = ""
    if until:
        while not said.endswith(until):
            line = program.stdout.readline()
            assert line, program.communicate()
            said += line
        program.kill()
    rest, errors = program.communicate(timeout=60)
    assert until or program.returncode == 0, errors
    return said + rest


def test_a_producer_in_javascript_gets_a_receipt_for_each_message(
    node: Path, broker: RunningBroker
) -> None:
    run(node, broker, PRODUCER)
    with Client(broker.service_url) as client:
        consumer = client.subscribe("my-topic", "s", initial_position=InitialPosition.Earliest)
        found = [consumer.receive(30_000) for _ in range(100)]
    assert [each.data() for each in found] == [b"message %d" % number for number in range(100)]
    assert found[7].partition_key() == "k7"


def test_a_reader_in_javascript_reads_on_as_long_as_it_answers(
    node: Path, broker: RunningBroker
) -> None:
    with Client(broker.service_url) as client:
        producer = client.create_producer("my-topic")
        for number in range(10):
            producer.send(b"%d" % number)
    expected = "".join(f"{number}\n" for number in range(10))
    assert run(node, broker, READER, until="9\n") == expected


def test_the_documents_consumer_receives_and_acknowledges(
    node: Path, broker: RunningBroker
) -> None:
    (script,) = (each.text for each in blocks(DOCUMENT) if each.language == "javascript")
    with Client(broker.service_url) as client:
        producer = client.create_producer("my-topic")
        for number in range(3):
            producer.send(b"%d" % number)
        assert run(node, broker, script, until="2\n") == "0\n1\n2\n"
        producer.send(b"last")
        consumer = client.subscribe("my-topic", "from-js")
        while consumer.receive(30_000).data() != b"last":
            pass  # its last acknowledgements may not have arrived
