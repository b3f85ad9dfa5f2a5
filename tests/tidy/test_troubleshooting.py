"""Each sentence that docs/troubleshooting.md shows is what the product says in that situation."""

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from documents import OUTPUT, ROOT, blocks, not_printed

import pybroker.testing
from pybroker.client import Client, ConsumerType, InitialPosition, PulsarException
from pybroker.testing import RunningBroker

PAGE = ROOT / "docs/troubleshooting.md"
SHOWN = [
    line for block in blocks(PAGE) if block.declared == OUTPUT for line in block.text.splitlines()
]
NOBODY = "127.0.0.1:1"  # no process listens there without being asked


def told(work: Callable[[], object]) -> str:
    with pytest.raises(PulsarException) as refused:
        work()
    return str(refused.value)


def printed(*words: str, folder: Path, until: str = "") -> str:
    """What a command prints until it ends, or until a line contains `until`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pybroker", *words],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if until and until in line:
            break
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    process.stdout.close()
    process.wait(30)
    return said


def told_to_clients(broker: RunningBroker) -> list[str]:
    said = []
    with (
        Client(broker.service_url, enable_transaction=True) as client,
        Client(broker.service_url) as another,
    ):
        consumer = client.subscribe("x", "s", initial_position=InitialPosition.Earliest)
        producer = client.create_producer("x")
        said.append(told(lambda: another.subscribe("x", "s")))
        shared = client.subscribe("x", "shared", consumer_type=ConsumerType.Shared)
        producer.send(b"1")
        said.append(told(lambda: shared.acknowledge_cumulative(shared.receive())))
        first, second = client.new_transaction(), client.new_transaction()
        message = consumer.receive()
        consumer.acknowledge(message, txn=first)
        said.append(told(lambda: consumer.acknowledge(message, txn=second)))
        said.append(told(second.commit))
        late = client.new_transaction(timeout_ms=60_000)
        broker.clock.advance("2m")
        said.append(told(late.commit))
        said.append(told(lambda: producer.send(b"2", txn=late)))
        said.append(told(lambda: client.new_transaction(timeout_ms=10**10)))
        said.append(told(lambda: producer.send(bytes(6_000_000))))
        said.append(told(lambda: client.create_producer("persistent://nobody/ns/t")))
        said.append(told(lambda: Client("http://localhost:8080")))
    return said


def told_by_commands(broker: RunningBroker, folder: Path) -> list[str]:
    port = broker.service_url.rpartition(":")[2]
    holder = subprocess.Popen(
        [sys.executable, "-m", "pybroker", "standalone", "--port", "0", "--http-port", "0"],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().startswith("pybroker ready")
        ports = ("--port", "0", "--http-port", "0")
        return [
            printed("standalone", *ports, folder=folder),
            printed("standalone", "--port", port, "--data-dir", "other", folder=folder),
            printed("produce", "t", "-m", "x", "--url", f"pulsar://{NOBODY}", folder=folder,
                    until="still trying"),
            printed("consume", "t", "-s", "new", "--url", broker.service_url, folder=folder,
                    until="no message yet"),
            printed("admin", "--admin-url", broker.admin_url, "topics", "stats",
                    "persistent://public/default/none", folder=folder),
            printed("admin", "--admin-url", f"http://{NOBODY}", "topics", "list",
                    "public/default", folder=folder),
            printed("admin", "topics", "statss", "t", folder=folder),
        ]  # fmt: skip
    finally:
        holder.kill()
        holder.wait(30)
        if holder.stdout is not None:
            holder.stdout.close()


@pytest.mark.slow
def test_each_sentence_is_said_by_the_product(tmp_path: Path) -> None:
    with pybroker.testing.broker(http=True) as broker:
        said = "\n".join([*told_to_clients(broker), *told_by_commands(broker, tmp_path)])
    said = said.replace("pybroker admin: HTTP 404", "HTTP 404")
    assert [line for line in SHOWN if not_printed(line, said) is not None] == [], said


def test_the_page_shows_sentences() -> None:
    assert len(SHOWN) > 10
