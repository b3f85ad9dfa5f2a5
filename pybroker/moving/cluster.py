"""A BookKeeper cluster as the source or the target of a move."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from managed_ledger.storage.bookkeeper import move_lock
from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend, ClusterConfig
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.session import SessionState
from pybroker.base.runtime import Clock
from pybroker.moving.record import MoveFailed


@asynccontextmanager
async def cluster(
    servers: str, clock: Clock, rng: random.Random, config: ClusterConfig
) -> AsyncIterator[BookKeeperBackend]:
    """The cluster's storage, while no broker uses it. Raises DirectoryInUse, ZooKeeperError; and
    MoveFailed, in the middle of the block, when that is no longer certain.
    """
    lock = ZooKeeper(servers, rng, config.session_timeout_ms)
    await lock.open()
    task = asyncio.current_task()
    assert task is not None

    def changed(state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            task.cancel()

    try:
        await move_lock.hold(lock)
        lock.on_state(changed)
        backend = BookKeeperBackend(servers, clock, rng, config)
        await backend.open()
        try:
            yield backend
        finally:
            await backend.close()
    except asyncio.CancelledError:
        if lock.state is SessionState.EXPIRED and task.uncancel() == 0:
            raise MoveFailed(
                "the ZooKeeper session ended, and brokers may have started meanwhile: repeat the "
                "command, which continues from there"
            ) from None
        raise
    finally:
        await lock.close()
