"""The nodes below one path of ZooKeeper, in memory, kept up to date by a recursive watch.

The mirror always lags a little. So it serves to answer questions and to choose what to try; where
brokers compete, ZooKeeper decides when one of them creates a node.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.errors import ConnectionLoss, NodeExists, NoNode
from managed_ledger.storage.zookeeper.operations import EventType, Node
from managed_ledger.storage.zookeeper.refresh import Refresh

_AT_ONCE: Final = 200  # nodes read in parallel


class TreeMirror:
    def __init__(
        self, zookeeper: ZooKeeper, root: str, changed: Callable[[str], None] | None = None
    ) -> None:
        """`changed(path)` is called when a node was created, deleted or changed."""
        self.nodes: dict[str, Node] = {}
        self.root = root
        self._zookeeper = zookeeper
        self._changed = changed
        self._stale: dict[str, None] = {}  # paths to look at
        self._is_all_stale = False
        self._refresh = Refresh(self._look)

    async def open(self) -> None:
        """Loads the tree. Raises ZooKeeperError if ZooKeeper does not answer."""
        await make_parents(self._zookeeper, f"{self.root}/x")
        await self._zookeeper.watch(self.root, True, self._event)
        await self._load()

    async def close(self) -> None:
        """Idempotent."""
        await self._refresh.close()

    async def look(self, path: str, insist: bool = False) -> Node | None:
        """Read one node into the mirror; it may have changed again by then. Raises
        ZooKeeperError.
        """
        try:
            node = await self._zookeeper.get(path, insist)
        except NoNode:
            self.forget(path)
            return None
        self.put(path, node)
        return node

    def put(self, path: str, node: Node) -> None:
        """Note a node that this process has just written or read."""
        known = self.nodes.get(path)
        self.nodes[path] = node
        if known != node and self._changed is not None:
            self._changed(path)

    def forget(self, path: str) -> None:
        if self.nodes.pop(path, None) is not None and self._changed is not None:
            self._changed(path)

    def _event(self, event: EventType, path: str) -> None:
        if event is EventType.RESYNC:
            self._is_all_stale = True
        else:
            self._stale[path] = None
        self._refresh.request()

    async def _look(self) -> None:
        if self._is_all_stale:
            self._is_all_stale = False
            await self._load()
        while self._stale:
            path = next(iter(self._stale))
            del self._stale[path]
            if path != self.root:
                await self.look(path)

    async def _load(self) -> None:
        known = dict.fromkeys(self.nodes)
        paths = [self.root]
        while paths:
            some = [paths.pop() for _ in range(min(len(paths), _AT_ONCE))]
            for below in await asyncio.gather(*map(self._children, some)):
                for path in below:
                    known.pop(path, None)
                    paths.append(path)
        for path in known:
            await self.look(path)  # deleted, unless it was created again meanwhile

    async def _children(self, path: str) -> list[str]:
        try:
            below = [f"{path}/{name}" for name in await self._zookeeper.children(path)]
        except NoNode:
            return []
        await asyncio.gather(*map(self.look, below))
        return below


async def make_parents(zookeeper: ZooKeeper, path: str) -> None:
    """Create the missing parents of a node. Raises ZooKeeperError."""
    parts = path.split("/")[1:-1]
    for count in range(1, len(parts) + 1):
        while True:
            try:
                await zookeeper.create("/" + "/".join(parts[:count]), b"")
            except ConnectionLoss:
                continue
            except NodeExists:
                pass
            break
