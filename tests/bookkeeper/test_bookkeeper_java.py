"""BookKeeper's Java client and shell read pybroker's ledgers, and pybroker reads the client's."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "compat"))

from bookkeeper_client import append, client_of, payloads_of
from official_java import java_gateway
from servers import Cluster, server_jars

from managed_ledger.storage.bookkeeper.errors import LedgerFenced
from managed_ledger.storage.bookkeeper.metadata_record import LedgerState
from managed_ledger.storage.bookkeeper.quorums import Quorums

pytestmark = [pytest.mark.slow, pytest.mark.java]

SHAPES = [Quorums(2, 2, 2), Quorums(3, 2, 2), Quorums(3, 3, 2)]
PAYLOADS = [b"entry %d " % number * number for number in range(60)]


class JavaClient:
    def __init__(self, gateway: Any, cluster: Cluster) -> None:
        self._jvm = gateway.jvm
        conf = self._jvm.org.apache.bookkeeper.conf.ClientConfiguration()
        conf.setMetadataServiceUri(cluster.metadata_service_uri)
        conf.setUseV2WireProtocol(True)
        package = self._jvm.org.apache.bookkeeper.client
        self._client = package.BookKeeper(conf)
        self._digest = package.BookKeeper.DigestType.CRC32C

    def create(self, quorums: Quorums) -> Any:
        sizes = (quorums.ensemble, quorums.write, quorums.ack)
        return self._client.createLedger(*sizes, self._digest, b"")

    def read(self, ledger_id: int, password: bytes = b"") -> list[bytes]:
        """Read all entries; recovers the ledger first, unless it is closed."""
        handle = self._client.openLedger(ledger_id, self._digest, password)
        last = handle.getLastAddConfirmed()
        entries = handle.readEntries(0, last)
        found = []
        while entries.hasMoreElements():
            found.append(bytes(entries.nextElement().getEntry()))
        handle.close()
        return found


@pytest.fixture(scope="module")
def java(cluster: Cluster) -> Iterator[JavaClient]:
    with java_gateway(server_jars(), ["-Xmx128m"]) as gateway:
        yield JavaClient(gateway, cluster)


@pytest.mark.parametrize("quorums", SHAPES, ids=str)
def test_java_reads_a_ledger_that_we_closed(cluster, java, quorums):
    async def written() -> int:
        async with client_of(cluster.zookeeper_address, quorums) as client:
            writer = await client.create({"application": b"pybroker"})
            await append(writer, *PAYLOADS)
            await writer.close()
            return writer.ledger_id

    assert java.read(asyncio.run(written())) == PAYLOADS


def test_java_needs_the_password_of_a_ledger_that_we_left_open(cluster, java):
    async def scenario() -> None:
        quorums = SHAPES[0]
        async with client_of(cluster.zookeeper_address, quorums, password=b"secret") as client:
            writer = await client.create()
            await append(writer, *PAYLOADS)
            with pytest.raises(Exception, match="UnauthorizedAccess"):
                java.read(writer.ledger_id)
            assert await asyncio.to_thread(java.read, writer.ledger_id, b"secret") == PAYLOADS
            metadata = await client.recover(writer.ledger_id)
        async with client_of(cluster.zookeeper_address, quorums) as client:
            assert await payloads_of(client, writer.ledger_id, metadata) == PAYLOADS

    asyncio.run(scenario())


@pytest.mark.parametrize("quorums", SHAPES, ids=str)
def test_java_recovers_a_ledger_that_we_left_open_and_fences_us(cluster, java, quorums):
    async def scenario() -> None:
        async with client_of(cluster.zookeeper_address, quorums) as client:
            writer = await client.create()
            await append(writer, *PAYLOADS)
            assert await asyncio.to_thread(java.read, writer.ledger_id) == PAYLOADS
            with pytest.raises(LedgerFenced):
                await append(writer, b"late")
            with pytest.raises(LedgerFenced):
                await writer.close()
            assert (await client.recover(writer.ledger_id)).length == sum(map(len, PAYLOADS))

    asyncio.run(scenario())


@pytest.mark.parametrize("quorums", SHAPES, ids=str)
@pytest.mark.parametrize("is_closed", [True, False])
def test_we_read_and_recover_what_java_wrote(cluster, java, quorums, is_closed):
    handle = java.create(quorums)
    for payload in PAYLOADS:
        handle.addEntry(payload)
    if is_closed:
        handle.close()

    async def scenario() -> None:
        async with client_of(cluster.zookeeper_address, quorums) as client:
            ledger_id = handle.getId()
            metadata = await client.recover(ledger_id)
            assert metadata.state is LedgerState.CLOSED
            assert metadata.last_entry_id == len(PAYLOADS) - 1
            assert metadata.length == sum(map(len, PAYLOADS))
            assert await payloads_of(client, ledger_id, metadata) == PAYLOADS

    asyncio.run(scenario())
    if not is_closed:
        with pytest.raises(Exception, match="Fenced"):
            handle.addEntry(b"late")


def test_the_shell_reads_our_ledger_and_its_metadata(cluster):
    async def written() -> int:
        async with client_of(cluster.zookeeper_address, Quorums(3, 3, 2)) as client:
            writer = await client.create({"application": b"pybroker"})
            await append(writer, b"first", b"second")
            await writer.close()
            return writer.ledger_id

    ledger_id = asyncio.run(written())
    metadata = cluster.shell("ledgermetadata", "-ledgerid", str(ledger_id))
    assert "state=CLOSED, length=11, lastEntryId=1" in metadata
    assert "application" in metadata
    entries = cluster.shell("readledger", "-ledgerid", str(ledger_id), "-msg")
    assert entries.index("first") < entries.index("second")
