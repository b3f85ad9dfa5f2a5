"""pybroker's BookKeeper client on a cluster, for the duration of an `async with`, and short
helpers.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from managed_ledger.storage.bookkeeper.bookies import BookieLimits
from managed_ledger.storage.bookkeeper.client import BookKeeper
from managed_ledger.storage.bookkeeper.metadata_record import LedgerMetadata
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.bookkeeper.reader import LedgerReader
from managed_ledger.storage.bookkeeper.writer import LedgerWriter
from managed_ledger.storage.zookeeper.client import ZooKeeper


class WallClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


@asynccontextmanager
async def client_of(
    zookeeper_address: str,
    quorums: Quorums,
    limits: BookieLimits | None = None,
    seed: object = 1,
    session_timeout_ms: int = 4000,
    password: bytes = b"",
) -> AsyncIterator[BookKeeper]:
    rng = random.Random(str(seed))
    zookeeper = ZooKeeper(zookeeper_address, rng, session_timeout_ms)
    await zookeeper.open()
    client = BookKeeper(zookeeper, WallClock(), rng, quorums, limits=limits, password=password)
    try:
        await client.open()
        yield client
    finally:
        await client.close()
        await zookeeper.close()


async def append(writer: LedgerWriter, *payloads: bytes) -> None:
    """Append; returns when all entries are confirmed, or raises the first failure."""
    await asyncio.gather(*appending(writer, payloads))


def appending(writer: LedgerWriter, payloads: Iterable[bytes]) -> list["asyncio.Future[None]"]:
    loop = asyncio.get_running_loop()
    futures = []
    for payload in payloads:
        done: asyncio.Future[None] = loop.create_future()

        def appended(error: Exception | None, done: "asyncio.Future[None]" = done) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        writer.append(payload, appended)
        futures.append(done)
    return futures


async def payloads_of(client: BookKeeper, ledger_id: int, metadata: LedgerMetadata) -> list[bytes]:
    """All payloads of a closed ledger."""
    reader = LedgerReader(ledger_id, metadata, client.bookies)
    found: list[bytes] = []
    while len(found) <= metadata.last_entry_id:
        bodies = await reader.read(len(found), metadata.last_entry_id, 1 << 20)
        found += [body.payload for body in bodies]
    return found
