"""Changes of keys that share a node: read the node, join the values, compare-and-set.

The node is read right before the change, so that the data of other programs is kept. The version of
such a key counts the changes of its own value. A change is made only if the node and the table have
the same value.
"""

from collections.abc import Callable

from managed_ledger.errors import BadVersion
from managed_ledger.storage.backend import Versioned
from managed_ledger.storage.bookkeeper.formats.family import JoinedFamily
from managed_ledger.storage.operations import Put, Remove
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.errors import NoNode
from managed_ledger.storage.zookeeper.operations import Create, Delete, Node, Operation, SetData

ATTEMPTS = 20  # while others write to the node, too


class JoinedNodes:
    def __init__(self, zookeeper: ZooKeeper, known: Callable[[str], Versioned | None]) -> None:
        """`known` returns the table's value of a key."""
        self._zookeeper = zookeeper
        self._known = known

    async def change(
        self, family: JoinedFamily, path: str, mutation: Put | Remove
    ) -> Operation | None:
        """The operation that makes the change; None: there is nothing to do. Raises BadVersion,
        CorruptStorage, ZooKeeperError.
        """
        node = await self._node(path)
        values = {} if node is None else dict(family.split(path, node.value))
        key = mutation.key
        if isinstance(mutation, Put):
            self._check(key, values.get(key))
            values[key] = mutation.stored.value
        elif values.pop(key, None) is None:
            return None
        joined = family.join(path, values, b"" if node is None else node.value)
        if joined is None:
            return None if node is None else Delete(path)
        if isinstance(mutation, Put):
            value = family.split(path, joined).get(key, mutation.stored.value)
            mutation.stored = mutation.stored._replace(value=value)
        return Create(path, joined) if node is None else SetData(path, joined, node.version)

    async def _node(self, path: str) -> Node | None:
        try:
            return await self._zookeeper.get(path)
        except NoNode:
            return None

    def _check(self, key: str, value: bytes | None) -> None:
        known = self._known(key)
        if value != (None if known is None else known.value):
            raise BadVersion(f"{key!r}: another process changed it; read it again and retry")
