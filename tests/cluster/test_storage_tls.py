"""`pybroker broker` with TLS to real bookies and a real ZooKeeper."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_processes import BrokerProcess
from certificates import Authority
from documents import ROOT, blocks
from servers import Cluster

from pybroker.client import Client, InitialPosition
from pybroker.moving.main import main as move

pytestmark = pytest.mark.slow

TOPIC = "persistent://public/default/orders"
QUORUMS = dict.fromkeys(
    (f"managedLedgerDefault{each}" for each in ("EnsembleSize", "WriteQuorum", "AckQuorum")), 1
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    certificate, key = authority.issue("broker")
    both = Path(key).read_text() + Path(certificate).read_text()
    (authority.directory / "broker.pem").write_text(both)
    (authority.directory / "ca.pem").write_text(authority.path.read_text())
    return authority


@pytest.fixture(scope="module")
def storage(authority: Authority) -> Iterator[Cluster]:
    with Cluster(1, tls=authority) as running:
        yield running


def settings(authority: Authority) -> dict[str, object]:
    """The document's settings, with this test's files."""
    conf, client = (
        block.text
        for block in blocks(ROOT / "docs/cluster.md")
        if "test_storage_tls" in block.declared
    )
    conf, client = (
        text.replace("/etc/pybroker", str(authority.directory)) for text in (conf, client)
    )
    (authority.directory / "zookeeper-client.conf").write_text(client)
    lines = (line.partition("=") for line in conf.splitlines())
    return {**QUORUMS, **{key: value for key, _, value in lines if key != "metadataStoreUrl"}}


def test_a_broker_keeps_messages_on_bookies_and_in_zookeeper_over_tls(
    tmp_path: Path, authority: Authority, storage: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pybroker move` then reads them over TLS."""
    found = settings(authority)
    broker = BrokerProcess(tmp_path, "one", f"localhost:{storage.secure_port}", found)
    try:
        with Client(broker.service_url) as client:
            client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest).close()
            producer = client.create_producer(TOPIC)
            for number in range(100):
                producer.send(b"%d" % number + bytes(100_000))
        broker.kill()
        broker.start()
        with Client(broker.service_url) as client:
            consumer = client.subscribe(TOPIC, "s")
            received = [consumer.receive(30_000).data().rstrip(b"\0") for _ in range(100)]
        assert received == [b"%d" % number for number in range(100)]
    finally:
        broker.stop()
    place, conf = f"zk:localhost:{storage.secure_port}", str(tmp_path / "one.conf")
    assert move(["--from", place, "--to", str(tmp_path / "copy"), "--config", conf]) == 0
    assert "moved and verified" in capsys.readouterr().out
    assert "Session is protected by: TLS" in storage.bookies[0].log
