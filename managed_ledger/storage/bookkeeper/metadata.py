"""The seam's metadata in ZooKeeper: a mirror in memory, and one queue of changes.

Changes are made in the order of the calls, many in one transaction of ZooKeeper: either all of a
transaction are made, or each is tried alone, in order, and only those fail that have to. So nothing
is ever made although something before it was lost with the connection. A lost answer is resolved by
looking: the versions tell whether the transaction was made.

What other processes change comes by a recursive watch.
"""

import asyncio
import logging
from collections import deque
from typing import Final, Protocol

from managed_ledger.errors import BadVersion
from managed_ledger.storage.backend import Versioned
from managed_ledger.storage.bookkeeper.errors import BookKeeperError
from managed_ledger.storage.bookkeeper.key_paths import key_of, path_of
from managed_ledger.storage.bookkeeper.ledger_store import LedgerStore
from managed_ledger.storage.metadata_table import MetadataTable
from managed_ledger.storage.operations import DeleteLedger, Put, Remove
from managed_ledger.storage.zookeeper.errors import (
    BadVersionError,
    ConnectionLoss,
    NodeExists,
    NoNode,
    ZooKeeperError,
)
from managed_ledger.storage.zookeeper.operations import (
    Create,
    Delete,
    EventType,
    Operation,
    SetData,
)
from managed_ledger.storage.zookeeper.refresh import Refresh

log = logging.getLogger(__name__)
MAX_OPERATIONS: Final = 100  # in one transaction of ZooKeeper
MAX_BYTES: Final = 256 * 1024  # whose jute.maxbuffer is 1 MiB by default
_LOADED_AT_ONCE: Final = 200
Mutation = Put | Remove | DeleteLedger


class Ledgers(Protocol):
    """The backend's side: ledgers that are created and deleted with the metadata."""

    async def creation(self, ledger_id: int) -> Operation:
        """What creates the ledger, on bookies that are there now. Raises NotEnoughBookies."""
        ...

    def created(self, ledger_id: int) -> None:
        """What `creation` made last for it was done."""
        ...

    def deleted(self, ledger_id: int) -> None: ...


class Metadata:
    def __init__(self, ledgers: Ledgers, store: LedgerStore, root: str) -> None:
        self.table = MetadataTable(self.submit)
        self._ledgers = ledgers
        self._store = store
        self._zookeeper = store.zookeeper
        self._root = root
        self._queue: deque[Mutation] = deque()
        self._task: asyncio.Task[None] | None = None
        self._foreign: dict[str, None] = {}  # keys to look at
        self._is_stale = False
        self._told = self._looked = 0  # of `_foreign`: came, and were looked at
        self._behind: list[tuple[int, asyncio.Future[None]]] = []  # waiting for `_looked`
        self._refresh = Refresh(self._look)
        self.pending_bytes = 0

    async def open(self) -> None:
        """Raises ZooKeeperError."""
        await self._make_parents(f"{self._root}/x")
        await self._zookeeper.watch(self._root, True, self._event)
        await self._load()

    async def close(self) -> None:
        """Everything queued has an outcome when this returns."""
        while self._task is not None:
            await asyncio.shield(self._task)
        await self._refresh.close()

    def submit(self, mutation: Mutation) -> None:
        self._queue.append(mutation)
        self.pending_bytes += _size(mutation)
        if self._task is None:
            self._task = asyncio.ensure_future(self._drain())

    async def caught_up(self) -> None:
        """Return when the mirror shows what events up to now tell of: after an own change, all that
        was changed before it.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._behind.append((self._told, done))
        self._refresh.request()
        await done

    # --- changes

    async def _drain(self) -> None:
        while self._queue:
            batch = self._take()
            errors = await self._write(batch)
            for mutation, error in zip(batch, errors, strict=True):
                self.pending_bytes -= _size(mutation)
                self._settle(mutation, error)
        self._task = None

    def _take(self) -> list[Mutation]:
        """From the front; a key or ledger at most once, so that one look tells what was made."""
        batch: list[Mutation] = []
        seen: set[object] = set()
        size = 0
        while self._queue and len(batch) < MAX_OPERATIONS:
            mutation = self._queue[0]
            what = mutation.ledger_id if isinstance(mutation, DeleteLedger) else mutation.key
            size += _size(mutation)
            if batch and (size > MAX_BYTES or what in seen):
                break
            seen.add(what)
            batch.append(self._queue.popleft())
        return batch

    async def _write(self, batch: list[Mutation]) -> list[Exception | None]:
        """The outcome of each."""
        if len(batch) > 1:
            try:
                await self._make([part for each in batch for part in await self._parts(each)])
                return [None] * len(batch)
            except (BookKeeperError, ZooKeeperError) as why:
                log.debug("one by one: %s", why)
        return [await self._write_one(each) for each in batch]

    async def _write_one(self, mutation: Mutation) -> Exception | None:
        try:
            await self._make(await self._parts(mutation))
        except (BadVersionError, NodeExists) as why:
            return BadVersion(f"{why}: another process changed it; read it again and retry")
        except NoNode as why:
            if isinstance(mutation, Put):
                return BadVersion(f"{why}: another process deleted it; read it again and retry")
        except (BookKeeperError, ZooKeeperError) as why:
            return why
        return None

    async def _parts(self, mutation: Mutation) -> list[Operation]:
        if isinstance(mutation, DeleteLedger):
            return [Delete(self._store.path(mutation.ledger_id))]
        path = path_of(self._root, mutation.key)
        if isinstance(mutation, Remove):
            return [Delete(path)]
        value, version = mutation.stored
        change = Create(path, value) if version == 0 else SetData(path, value, version - 1)
        if version == 0:
            await self._make_parents(path)
        if mutation.new_ledger_id is None:
            return [change]
        return [await self._ledgers.creation(mutation.new_ledger_id), change]

    async def _make(self, parts: list[Operation]) -> None:
        """All or nothing, also over lost connections."""
        while True:
            try:
                await self._zookeeper.multi(parts)
                return
            except ConnectionLoss:
                if await self._is_made(parts[-1]):
                    return

    async def _is_made(self, part: Operation) -> bool:
        """By what the node of one operation says; they were made together. A node that is gone was
        not certainly deleted by this one, but it is what was wanted.
        """
        try:
            node = await self._zookeeper.get(part.path, insist=True)
        except NoNode:
            return isinstance(part, Delete)
        if isinstance(part, Create):
            return node.version == 0 and node.value == part.value
        if isinstance(part, SetData):
            return node.version == part.version + 1 and node.value == part.value
        return False

    def _settle(self, mutation: Mutation, error: Exception | None) -> None:
        if isinstance(mutation, DeleteLedger):
            if error is None:
                self._ledgers.deleted(mutation.ledger_id)
        elif error is None:
            if isinstance(mutation, Put) and mutation.new_ledger_id is not None:
                self._ledgers.created(mutation.new_ledger_id)
            self.table.apply(mutation)
        else:
            self.table.withdraw(mutation)
            self._look_at(mutation.key)
        mutation.complete(error)

    async def _make_parents(self, path: str) -> None:
        parts = path.split("/")[1:-1]
        missing = []
        while parts:
            try:
                await self._zookeeper.create("/" + "/".join(parts), b"")
                break
            except NodeExists:
                break
            except NoNode:
                missing.append(parts.pop())
        for part in reversed(missing):
            parts.append(part)
            try:
                await self._zookeeper.create("/" + "/".join(parts), b"")
            except NodeExists:
                continue

    # --- the mirror

    async def _load(self) -> None:
        found: list[tuple[str, Versioned]] = []
        paths = [self._root]
        while paths:
            looked_at = [paths.pop() for _ in range(min(len(paths), _LOADED_AT_ONCE))]
            for keyed, below in await asyncio.gather(*map(self._look_below, looked_at)):
                found += keyed
                paths += below
        self.table.load(found)

    async def _look_below(self, path: str) -> tuple[list[tuple[str, Versioned]], list[str]]:
        try:
            below = [f"{path}/{name}" for name in await self._zookeeper.children(path)]
        except NoNode:
            return [], []
        values = [each for each in below if each.endswith("=")]
        keyed = [item for each in values if (item := await self._fetch(each)) is not None]
        return keyed, [each for each in below if not each.endswith("=")]

    async def _fetch(self, path: str) -> tuple[str, Versioned] | None:
        key = key_of(self._root, path)
        if key is None:
            return None
        try:
            node = await self._zookeeper.get(path)
        except NoNode:
            return None
        return key, Versioned(node.value, node.version)

    def _event(self, event: EventType, path: str) -> None:
        if event is EventType.RESYNC:
            self._is_stale = True
            self._refresh.request()
        elif (key := key_of(self._root, path)) is not None:
            self._look_at(key)

    def _look_at(self, key: str) -> None:
        if key not in self._foreign:
            self._foreign[key] = None
            self._told += 1
        self._refresh.request()

    async def _look(self) -> None:
        """At what was changed; an own change is there already, with the same version."""
        if self._is_stale:
            self._is_stale = False
            await self._load_again()
        self._tell_those_behind()
        while self._foreign:
            key = next(iter(self._foreign))
            del self._foreign[key]
            try:
                found = await self._fetch(path_of(self._root, key))
            except ZooKeeperError:
                self._foreign[key] = None
                raise
            self._apply_foreign(key, None if found is None else found[1])
            self._looked += 1
            self._tell_those_behind()

    def _tell_those_behind(self) -> None:
        """Keys are looked at in the order in which they came."""
        while self._behind and self._behind[0][0] <= self._looked and not self._is_stale:
            done = self._behind.pop(0)[1]
            if not done.done():
                done.set_result(None)

    async def _load_again(self) -> None:
        known = dict.fromkeys(self.table.keys(""))
        fresh = Metadata(self._ledgers, self._store, self._root)
        await fresh._load()
        for key, stored in fresh.table.items():
            self._apply_foreign(key, stored)
            known.pop(key, None)
        for key in known:
            self._look_at(key)

    def _apply_foreign(self, key: str, stored: Versioned | None) -> None:
        if stored == self.table.get(key) or self.table.is_queued(key):
            return
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if stored is None:
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.table.apply(Remove(key, gone))
        else:
            self.table.apply(Put(key, stored, done))


def _size(mutation: Mutation) -> int:
    return 100 + len(mutation.stored.value) if isinstance(mutation, Put) else 100
