"""A BookKeeper cluster as the source or the target of a move."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from managed_ledger.storage.bookkeeper import move_lock
from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend, ClusterConfig
from managed_ledger.storage.tls_files import ClientTls
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.session import SessionState
from pybroker.base.runtime import Clock
from pybroker.cluster.transactions.formats import FOREIGN, message_count
from pybroker.moving.record import MoveFailed


@asynccontextmanager
async def alone(
    servers: str, rng: random.Random, session_timeout_ms: int, tls: ClientTls | None = None
) -> AsyncIterator[None]:
    """Within this context no broker uses the cluster. Raises DirectoryInUse and ZooKeeperError, and
    MoveFailed as soon as this is no longer certain.
    """
    lock = ZooKeeper(servers, rng, session_timeout_ms, tls)
    await lock.open()
    task = asyncio.current_task()
    assert task is not None

    def changed(state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            task.cancel()

    try:
        await move_lock.hold(lock)
        lock.on_state(changed)
        yield
    except asyncio.CancelledError:
        if lock.state is SessionState.EXPIRED and task.uncancel() == 0:
            raise MoveFailed(
                "the ZooKeeper session ended, and brokers may have started meanwhile: repeat the "
                "command, which continues from there"
            ) from None
        raise
    finally:
        await lock.close()


@asynccontextmanager
async def cluster(
    servers: str, clock: Clock, rng: random.Random, config: ClusterConfig
) -> AsyncIterator[BookKeeperBackend]:
    """The storage of a cluster, which no broker uses meanwhile. Raises the errors of `alone`."""
    async with alone(servers, rng, config.session_timeout_ms, config.zookeeper_tls):
        backend = BookKeeperBackend(servers, clock, rng, config, message_count, FOREIGN)
        await backend.open()
        try:
            yield backend
        finally:
            await backend.close()
