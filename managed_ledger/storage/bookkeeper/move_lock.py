"""Keeps brokers away from a cluster while its data is copied, from or to it.

An ephemeral node marks a move in progress. Brokers and moves each write a node of their own before
they look for nodes of the other kind, so if a broker and a move begin at the same time, at least
one of them finds the other.
"""

from contextlib import suppress
from typing import Final

from managed_ledger.errors import DirectoryInUse
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.errors import NodeExists, NoNode

LOCK_PATH: Final = "/pybroker/move"
BROKERS_PATH: Final = "/loadbalance/brokers"


async def hold(zookeeper: ZooKeeper) -> None:
    """Lock the cluster until the session ends. Raises DirectoryInUse, ZooKeeperError."""
    await _take(zookeeper)
    brokers = await _children(zookeeper, BROKERS_PATH)
    if brokers:
        raise DirectoryInUse(
            f"brokers use the cluster: {', '.join(sorted(brokers))}; stop them first. A "
            "killed broker is listed until its session ends"
        )


async def refuse_during_move(zookeeper: ZooKeeper) -> None:
    """For a broker, once its own node exists. Raises DirectoryInUse, ZooKeeperError."""
    try:
        await zookeeper.get(LOCK_PATH)
    except NoNode:
        return
    raise DirectoryInUse(
        "`pybroker move` or `pybroker hand-over` uses this cluster: start brokers afterwards"
    )


async def _take(zookeeper: ZooKeeper) -> None:
    with suppress(NodeExists):
        await zookeeper.create(LOCK_PATH.rpartition("/")[0], b"")
    try:
        await zookeeper.create(LOCK_PATH, b"", ephemeral=True)
    except NodeExists:
        owner = (await zookeeper.get(LOCK_PATH)).ephemeral_owner
        if owner != zookeeper.session_id:  # otherwise the answer was lost and the request repeated
            raise DirectoryInUse(
                "another `pybroker move` or `pybroker hand-over` uses this cluster: wait until it "
                "ends; a killed one holds the cluster until its session ends"
            ) from None


async def _children(zookeeper: ZooKeeper, path: str) -> list[str]:
    try:
        return await zookeeper.children(path)
    except NoNode:
        return []
