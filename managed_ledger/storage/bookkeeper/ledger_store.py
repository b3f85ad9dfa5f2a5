"""The metadata of ledgers in ZooKeeper: paths, new numbers, compare-and-set.

Numbers come from sequential nodes `idgen/ID-…`, which are deleted at once. The metadata of ledger
1234567890 is at `12/3456/L7890`; numbers from 2^31 on have 19 digits, split 3-4-4-4-4. The node
`LAYOUT` is not required: Apache Pulsar's own cluster set-up does not write it.

Source: org.apache.bookkeeper.meta.HierarchicalLedgerManager, ZkLedgerIdGenerator.
"""

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from managed_ledger.errors import BadVersion, LedgerNotFound
from managed_ledger.storage.bookkeeper.errors import BookKeeperError
from managed_ledger.storage.bookkeeper.metadata_record import LedgerMetadata, decode, encode
from managed_ledger.storage.bookkeeper.registration import Address, registered_address
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.errors import (
    BadVersionError,
    ConnectionLoss,
    NodeExists,
    NoNode,
)
from managed_ledger.storage.zookeeper.operations import Create, Operation

_SHORT_IDS: Final = 1 << 31


class VersionedMetadata(NamedTuple):
    metadata: LedgerMetadata
    version: int  # of the ZooKeeper node


class LedgerStore:
    def __init__(self, zookeeper: ZooKeeper, root: str = "/ledgers") -> None:
        """`root` is the cluster's zkLedgersRootPath."""
        self.zookeeper = zookeeper
        self.root = root

    def path(self, ledger_id: int) -> str:
        if ledger_id < _SHORT_IDS:
            digits = f"{ledger_id:010}"
            return f"{self.root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
        digits = f"{ledger_id:019}"
        parts = "/".join(digits[at : at + 4] for at in range(3, 15, 4))
        return f"{self.root}/{digits[:3]}/{parts}/L{digits[15:]}"

    async def new_id(self) -> int:
        """A number that no ledger of the cluster has or had. Raises ZooKeeperError."""
        prefix = f"{self.root}/idgen/ID-"
        try:
            path = await self.zookeeper.create(prefix, b"", ephemeral=True, sequential=True)
        except NoNode:
            await self._make_parents(prefix)
            path = await self.zookeeper.create(prefix, b"", ephemeral=True, sequential=True)
        await self.zookeeper.delete(path)
        number = int(path.removeprefix(prefix))
        if number < 0:
            raise BookKeeperError("the cluster has used all 2^31 short ledger numbers")
        return number

    async def creation(self, ledger_id: int, metadata: LedgerMetadata) -> Operation:
        """The operation that creates the metadata, for a transaction. Creates missing parents
        first: it looks for them, because they mostly exist and a read is faster than a change.
        """
        path = self.path(ledger_id)
        try:
            await self.zookeeper.get(path.rpartition("/")[0])
        except NoNode:
            await self._make_parents(path)
        return Create(path, encode(metadata))

    async def create(self, ledger_id: int, metadata: LedgerMetadata) -> int:
        """Create the metadata; returns its version. Raises BadVersion if it exists."""
        path, value = self.path(ledger_id), encode(metadata)
        try:
            try:
                await self.zookeeper.create(path, value)
            except NoNode:
                await self._make_parents(path)
                await self.zookeeper.create(path, value)
        except NodeExists:
            raise BadVersion(f"ledger {ledger_id} exists already; take a new number") from None
        return 0

    async def get(self, ledger_id: int, insist: bool = False) -> VersionedMetadata:
        """Raises LedgerNotFound, BadLedgerMetadata. `insist`: see ZooKeeper.get."""
        try:
            node = await self.zookeeper.get(self.path(ledger_id), insist)
        except NoNode:
            raise LedgerNotFound(f"ledger {ledger_id} was deleted or never existed") from None
        return VersionedMetadata(decode(node.value), node.version)

    async def set(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> int:
        """The new version. Raises BadVersion if another client was first, LedgerNotFound."""
        try:
            return await self.zookeeper.set(self.path(ledger_id), encode(metadata), version)
        except BadVersionError:
            raise BadVersion(
                f"the metadata of ledger {ledger_id} is not at version {version}: it was changed "
                "in the meantime; read it again"
            ) from None
        except NoNode:
            raise LedgerNotFound(f"ledger {ledger_id} was deleted") from None

    async def change(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> int:
        """Like `set`, but after a lost connection finds out whether the change was made."""
        while True:
            try:
                return await self.set(ledger_id, metadata, version)
            except ConnectionLoss:
                found = await self.get(ledger_id, insist=True)
            if found.metadata == metadata:
                return found.version
            if found.version != version:
                raise BadVersion(f"the metadata of ledger {ledger_id} was changed; read it again")

    async def delete(self, ledger_id: int) -> None:
        """Idempotent. Bookies notice the deletion and free the space."""
        try:
            await self.zookeeper.delete(self.path(ledger_id))
        except NoNode:
            return

    async def bookies(self) -> list[str]:
        """The bookies that accept writes now."""
        found = await self.zookeeper.children(f"{self.root}/available")
        return sorted(each for each in found if each != "readonly")

    async def exists(self, path: str) -> bool:
        try:
            await self.zookeeper.get(path)
        except NoNode:
            return False
        return True

    async def create_below(self, root: str, path: str, value: bytes) -> None:
        """Create a node with its parents below `root`. Raises NodeExists, ZooKeeperError."""
        await self._make_parents(f"{root}/{path}")
        await self.zookeeper.create(f"{root}/{path}", value)

    async def addresses(self, bookies: Iterable[str]) -> dict[str, Address]:
        """The addresses that these bookies have registered. Raises ZooKeeperError."""
        bookies = list(bookies)
        found = await asyncio.gather(*map(self.address, bookies))
        return {each: at for each, at in zip(bookies, found, strict=True) if at is not None}

    async def address(self, bookie: str) -> Address | None:
        """The address that a bookie has registered, even if it accepts no writes now."""
        for folder in ("available", "available/readonly"):
            try:
                node = await self.zookeeper.get(f"{self.root}/{folder}/{bookie}")
            except NoNode:
                continue
            return registered_address(node.value)
        return None

    async def _make_parents(self, path: str) -> None:
        parts = path.split("/")[1:-1]
        for count in range(1, len(parts) + 1):
            await self.zookeeper.ensure("/" + "/".join(parts[:count]))
