"""The metadata of the storage seam in ZooKeeper: a mirror in memory, and one queue of changes.

Changes are made in the order of the calls, many in one ZooKeeper transaction. If the transaction
fails, each change is tried alone, in order, and only the invalid ones fail. After a lost connection
a node of the transaction is read: its version tells whether the transaction was made; if not, it is
repeated. So a lost connection never loses a change and keeps a later one.

A recursive watch reports changes by other processes. The family of a key determines the place and
the format of its value; a value too large for a node is first written to a ledger. Values in
ledgers of other processes are read only by `refresh`, which a process calls when it takes over the
keys: reading fences the writers of these ledgers.
"""

import asyncio
import logging
from collections import deque
from typing import Final, Protocol

from managed_ledger.errors import BadVersion, CorruptStorage, ManagedLedgerError
from managed_ledger.storage.backend import ABSENT, Versioned
from managed_ledger.storage.bookkeeper.formats.family import NO_LEDGER, Stored
from managed_ledger.storage.bookkeeper.formats.known import KnownFormats
from managed_ledger.storage.bookkeeper.joined_nodes import ATTEMPTS, JoinedNodes
from managed_ledger.storage.bookkeeper.ledger_store import LedgerStore
from managed_ledger.storage.bookkeeper.listed_values import ListedValues
from managed_ledger.storage.bookkeeper.looks import Found, Looks
from managed_ledger.storage.bookkeeper.mirror_table import MirrorTable
from managed_ledger.storage.bookkeeper.placed_values import Mutation, PlacedValues, requires_absence
from managed_ledger.storage.bookkeeper.value_ledgers import ValueLedgers
from managed_ledger.storage.operations import DeleteLedger, Put, Remove
from managed_ledger.storage.zookeeper.errors import (
    BadVersionError,
    ConnectionLoss,
    NodeExists,
    NoNode,
    ZooKeeperError,
)
from managed_ledger.storage.zookeeper.operations import (
    Check,
    Create,
    Delete,
    EventType,
    Operation,
    SetData,
)
from managed_ledger.storage.zookeeper.refresh import Refresh

log = logging.getLogger(__name__)
MAX_OPERATIONS: Final = 100  # in one ZooKeeper transaction
MAX_BYTES: Final = 256 * 1024  # ZooKeeper's jute.maxbuffer is 1 MiB by default
_LOADED_AT_ONCE: Final = 200
_LEDGERS_AT_ONCE: Final = 32


class Ledgers(Protocol):
    """The backend's part: ledgers that are created and deleted with the metadata."""

    async def creation(self, ledger_id: int) -> Operation:
        """The operation that creates the ledger, on bookies that are available now. Raises
        NotEnoughBookies.
        """
        ...

    def created(self, ledger_id: int) -> None:
        """The ledger of the last `creation` with this number exists."""
        ...

    def deleted(self, ledger_id: int) -> None: ...


class Metadata:
    def __init__(
        self, ledgers: Ledgers, store: LedgerStore, values: ValueLedgers, formats: KnownFormats
    ) -> None:
        self.table = MirrorTable(self.submit, self._refresh_below, values.release)
        self._ledgers = ledgers
        self._store = store
        self._zookeeper = store.zookeeper
        self._values = values
        self._formats = formats
        self._joined = JoinedNodes(self._zookeeper, self.table.known)
        self._listed = ListedValues(self._zookeeper, values, self.table, self._look_at)
        self._placed = PlacedValues(self._formats, values)
        self._queue: deque[Mutation] = deque()
        self._task: asyncio.Task[None] | None = None
        self._foreign = Looks()
        # Keys with a skipped event, because changes of this process to them had no outcome yet.
        self._unseen: set[str] = set()
        self._parents: set[str] = set()  # nodes that exist, of keys that must not be there
        self._is_stale = False
        self._loading = asyncio.Lock()
        self._learned: set[str] | None = None  # keys with newer values, while everything is read
        self._refresh = Refresh(self._look)
        self.pending_bytes = 0

    async def open(self) -> None:
        """Loads all keys. Raises ZooKeeperError if ZooKeeper does not answer."""
        for root in self._formats.roots:
            await self._zookeeper.make_parents(f"{root}/x")
            await self._zookeeper.watch(root, True, self._event)
        await self._load()

    async def close(self) -> None:
        """Wait until every queued change has an outcome."""
        while self._task is not None:
            await asyncio.shield(self._task)
        self._listed.close()
        await self._refresh.close()

    def submit(self, mutation: Mutation) -> None:
        self._queue.append(mutation)
        self.pending_bytes += _size(mutation)
        if self._task is None:
            self._task = asyncio.ensure_future(self._drain())

    async def caught_up(self) -> None:
        """Wait until the mirror shows the changes of all events received so far. After a change of
        this process these are all changes made before it.
        """
        await self._events_handled()
        if own := [each for key in self._unseen for each in self.table.outcomes(key)]:
            await asyncio.wait(own)
            await self._events_handled()

    async def _events_handled(self) -> None:
        done = self._foreign.wait()
        self._refresh.request()
        await done

    def read_back(self, key: str, value: bytes) -> bytes:
        """The value that `get` returns after `value` was put. Raises CorruptStorage."""
        return self._formats.read_back(key, value)

    # --- changes

    async def _drain(self) -> None:
        while self._queue:
            batch = self._take()
            errors = await self._write(batch)
            for mutation, error in zip(batch, errors, strict=True):
                self.pending_bytes -= _size(mutation)
                self._settle(mutation, error)
            await self._placed.delete_unused()
        self._task = None

    def _take(self) -> list[Mutation]:
        """The next changes, from the front of the queue. They contain each node or ledger at most
        once, so that one read tells whether a change was made.
        """
        batch: list[Mutation] = []
        seen: set[object] = set()
        size = 0
        while self._queue and len(batch) < MAX_OPERATIONS:
            mutation = self._queue[0]
            what: object
            if isinstance(mutation, DeleteLedger):
                what = mutation.ledger_id
            else:
                what = self._formats.path_of(mutation.key)
            size += _size(mutation)
            if batch and (size > MAX_BYTES or what in seen):
                break
            seen.add(what)
            batch.append(self._queue.popleft())
        return batch

    async def _write(self, batch: list[Mutation]) -> list[Exception | None]:
        """The outcome of each change."""
        if len(batch) > 1:
            try:
                await self._placed.write(batch)
                await self._make([part for each in batch for part in await self._parts(each)])
                return [None] * len(batch)
            except ManagedLedgerError as why:
                log.debug("one by one: %s", why)
        return [await self._write_one(each) for each in batch]

    async def _write_one(self, mutation: Mutation, attempt: int = 1) -> Exception | None:
        try:
            await self._placed.write([mutation])
            await self._make(await self._parts(mutation))
        except (BadVersionError, NodeExists) as why:
            if not isinstance(mutation, DeleteLedger) and self._formats.is_shared(mutation.key):
                return why if attempt == ATTEMPTS else await self._write_one(mutation, attempt + 1)
            if isinstance(mutation, Put) and await self._is_only_above_others(mutation):
                mutation.stored = mutation.stored._replace(version=1)
                return await self._write_one(mutation)
            return BadVersion(f"{why}: another process changed it; read it again and retry")
        except NoNode as why:
            if requires_absence(mutation) and attempt == 1:  # perhaps the parent of that node
                self._parents.clear()
                return await self._write_one(mutation, attempt + 1)
            if isinstance(mutation, Put):
                return BadVersion(f"{why}: another process deleted it; read it again and retry")
            return await self._nothing_to_delete(mutation)
        except ManagedLedgerError as why:
            return why
        return None

    async def _nothing_to_delete(self, deletion: Remove | DeleteLedger) -> Exception | None:
        """A node was missing: success if it was the one to delete; BadVersion if that of
        `only_while`.
        """
        if isinstance(deletion, DeleteLedger) or deletion.only_while is None:
            return None
        if requires_absence(deletion):
            return None
        try:
            await self._zookeeper.get(self._formats.path_of(deletion.only_while.key))
        except NoNode as why:
            return BadVersion(f"{why}: {deletion.key} is not deleted without it")
        except ZooKeeperError as why:
            return why
        return None

    async def _is_only_above_others(self, put: Put) -> bool:
        """Whether the node exists only as the parent of others and has no value yet."""
        path = self._formats.path_of(put.key)
        if put.stored.version != 0 or not self._formats.has_children(path):
            return False
        try:
            node = await self._zookeeper.get(path)
        except ZooKeeperError:
            return False
        return node.version == 0 and not node.value

    async def _parts(self, mutation: Mutation) -> list[Operation]:
        if isinstance(mutation, DeleteLedger):
            return [Delete(self._store.path(mutation.ledger_id))]
        parts = await self._change_parts(mutation)
        if mutation.only_while is None or not parts:
            return parts
        key, version = mutation.only_while
        path = self._formats.path_of(key)
        if version != ABSENT:
            return [Check(path, version), *parts]
        if (parent := path.rpartition("/")[0]) not in self._parents:
            await self._zookeeper.make_parents(path)
            self._parents.add(parent)
        return [Create(path, b""), Delete(path, 0), *parts]  # the first fails if it is there

    async def _change_parts(self, mutation: Put | Remove) -> list[Operation]:
        if self._formats.is_shared(mutation.key):
            return await self._shared_parts(mutation)
        path = self._formats.path_of(mutation.key)
        if isinstance(mutation, Remove):
            known = mutation.version
            return [Delete(path) if known is None else Delete(path, known)]
        value, version = self._placed.node(mutation), mutation.stored.version
        change = Create(path, value) if version == 0 else SetData(path, value, version - 1)
        put = self._formats.read_back(mutation.key, mutation.stored.value)
        mutation.stored = mutation.stored._replace(value=put)
        if version == 0:
            await self._zookeeper.make_parents(path)
        if mutation.new_ledger_id is None:
            return [change]
        return [await self._ledgers.creation(mutation.new_ledger_id), change]

    async def _shared_parts(self, mutation: Put | Remove) -> list[Operation]:
        """The operations for a key that shares its node."""
        if (listed := self._formats.listed(mutation.key)) is not None:
            change = await self._listed.change(*listed, mutation)
        else:
            joined = self._formats.joined(mutation.key)
            assert joined is not None
            change = await self._joined.change(*joined, mutation)
        if isinstance(change, Create):
            await self._zookeeper.make_parents(change.path)
        return [] if change is None else [change]

    async def _make(self, parts: list[Operation]) -> None:
        """Execute all operations or none, even if the connection is lost."""
        while parts:
            try:
                await self._zookeeper.multi(parts)
                return
            except ConnectionLoss:
                if await self._is_made(parts[-1]):
                    return

    async def _is_made(self, part: Operation) -> bool:
        """Whether the transaction was made, judged by one of its operations. A missing node may
        have been deleted by another client, but the result is the same.
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
        if not isinstance(mutation, DeleteLedger):
            self._learn(mutation.key)
            self._settle_listed(mutation, error is None)
        if isinstance(mutation, DeleteLedger):
            if error is None:
                self._ledgers.deleted(mutation.ledger_id)
        elif error is None:
            if isinstance(mutation, Put) and mutation.new_ledger_id is not None:
                self._ledgers.created(mutation.new_ledger_id)
            self._placed.made(mutation)
            self.table.set_unreadable(mutation.key, None)
            self.table.apply(mutation)
        else:
            self._placed.failed(mutation)
            self.table.withdraw(mutation)
            self._look_at(mutation.key)
        if not isinstance(mutation, DeleteLedger) and not self.table.is_queued(mutation.key):
            self._unseen.discard(mutation.key)
        mutation.complete(error)

    def _settle_listed(self, mutation: Put | Remove, made: bool) -> None:
        if (listed := self._formats.listed(mutation.key)) is not None:
            unused = self._listed.settle(listed[0], mutation, made)
            if unused is not None:
                self._placed.is_unused(mutation.key, unused)

    # --- the mirror

    async def _load(self) -> None:
        """Read everything. For keys that change meanwhile, the values read may be old: newer ones,
        from events or from this process's changes, are kept.
        """
        async with self._loading:
            learned = self._learned = set()
            try:
                everything = await self._everything()
            finally:
                self._learned = None
            for key in self.table.keys(""):
                if key not in everything:
                    self._look_at(key)
            for key, found in everything.items():
                if key not in learned:
                    self._apply_foreign(key, found)

    def _learn(self, key: str) -> None:
        if self._learned is not None:
            self._learned.add(key)

    async def _everything(self) -> dict[str, Found]:
        found: dict[str, Found] = {}
        paths = self._formats.roots
        while paths:
            looked_at = [paths.pop() for _ in range(min(len(paths), _LOADED_AT_ONCE))]
            for keyed, below in await asyncio.gather(*map(self._look_below, looked_at)):
                found |= keyed
                paths += below
        return found

    async def _look_below(self, path: str) -> tuple[dict[str, Found], list[str]]:
        try:
            below = [f"{path}/{name}" for name in await self._zookeeper.children(path)]
        except NoNode:
            return {}, []
        keys = [key for each in below for key in self._formats.keys_of(each)]
        found: dict[str, Found] = {}
        for at in range(0, len(keys), _LOADED_AT_ONCE):
            some = keys[at : at + _LOADED_AT_ONCE]
            for each in await asyncio.gather(*map(self._found, some)):
                found |= each
        return found, [each for each in below if self._formats.has_children(each)]

    async def _found(self, key: str) -> dict[str, Found]:
        """The stored values of a key, or of all keys of a folder."""
        if (listed := self._formats.listed(key)) is None:
            return {key: await self._fetch(key)}
        read = await self._listed.read(*listed)
        return {
            each: Found(stored, -1 if stored is None and why is None else 0, why)
            for each, (stored, why) in read.items()
        }

    async def _fetch(self, key: str, is_taken_over: bool = False) -> Found:
        """The current value. With `is_taken_over`, a value in a ledger is read, too, unless this
        process writes that ledger; raises BookKeeperError if bookies do not answer.
        """
        try:
            node = await self._zookeeper.get(self._formats.path_of(key))
        except NoNode:
            return Found()
        try:
            stored = self._formats.decoded(key, node.value)
            if stored is None:
                return Found()
            if is_taken_over and not self._is_here(key, stored, node.version):
                entry = await self._values.read(stored.ledger_id)
                stored = self._formats.decoded(key, node.value, entry)
        except CorruptStorage as why:
            return Found(None, node.version, str(why))
        return Found(stored, node.version)

    def _is_here(self, key: str, stored: Stored, version: int) -> bool:
        """Whether the value is known without reading a ledger."""
        if stored.ledger_id == NO_LEDGER:
            return True
        return self._is_known(key, stored, version) and self._values.writes(key, stored.ledger_id)

    def _is_known(self, key: str, stored: Stored, version: int) -> bool:
        """Whether the table has the value in that ledger, for this version of the node."""
        known = self.table.version(key), self._formats.ledger_id(key)
        return stored.ledger_id != NO_LEDGER and known == (version, stored.ledger_id)

    async def _refresh_below(self, prefix: str) -> None:
        """Raises ManagedLedgerError if ZooKeeper does not answer or a node cannot be decoded."""
        path = self._formats.path_of(f"{prefix}x" if prefix.endswith("/") else prefix)
        await self._zookeeper.sync(path)
        keys = {prefix: None}
        if prefix.endswith("/"):
            found, _ = await self._look_below(path.rpartition("/")[0])
            keys = dict.fromkeys([*found, *self.table.keys(prefix)])
        for key in keys:
            self._apply_foreign(key, await self._fetch(key, True), is_taken_over=True)

    async def refresh_ledgers(self) -> None:
        """As `refresh`, for all keys with values in ledgers. Raises ManagedLedgerError."""
        keys = self._formats.in_ledgers()
        for at in range(0, len(keys), _LEDGERS_AT_ONCE):
            some = keys[at : at + _LEDGERS_AT_ONCE]
            found = await asyncio.gather(*(self._fetch(key, True) for key in some))
            for key, each in zip(some, found, strict=True):
                self._apply_foreign(key, each, is_taken_over=True)

    def _event(self, event: EventType, path: str) -> None:
        if event is EventType.RESYNC:
            self._is_stale = True
            self._refresh.request()
        else:
            for key in self._formats.keys_of(path):
                self._look_at(key)

    def _look_at(self, key: str) -> None:
        self._foreign.add(key)
        self._refresh.request()

    async def _look(self) -> None:
        """Read changed keys. A change of this process is already in the table, with its version."""
        if self._is_stale:
            self._is_stale = False
            try:
                await self._load()
            except ZooKeeperError:
                self._is_stale = True
                raise
        self._tell_those_behind()
        while self._foreign:
            key, told = self._foreign.take()
            try:
                found_now = await self._found(key)
            except ZooKeeperError:
                self._foreign.put_back(key, told)
                raise
            for each, found in found_now.items():
                self._apply_foreign(each, found)
            self._tell_those_behind()

    def _tell_those_behind(self) -> None:
        if not self._is_stale:
            self._foreign.tell()

    def _apply_foreign(self, key: str, found: Found, is_taken_over: bool = False) -> None:
        if self.table.is_queued(key):
            self._unseen.add(key)
            return
        self._learn(key)
        version, stored = self.table.version(key), found.stored
        if stored is None and found.unreadable is None:
            if version is not None:
                self._formats.forget(key)
                self.table.set_unreadable(key, None)
                self.table.apply(Remove(key, asyncio.get_running_loop().create_future()))
            return
        if self._formats.joined(key) is not None:
            known = self.table.known(key)
            if stored is not None and known is not None and known.value == stored.value:
                return
            found = found._replace(version=0 if version is None else version + 1)
        if stored is None:
            value = Versioned(b"", found.version)
        else:
            if not is_taken_over and self._is_known(key, stored, found.version):
                return
            value = Versioned(stored.value, found.version)
            self._formats.keep(key, stored)
        if value == self.table.known(key):
            return
        self.table.set_unreadable(key, found.unreadable)
        self.table.apply(Put(key, value, asyncio.get_running_loop().create_future()))


def _size(mutation: Mutation) -> int:
    return 100 + len(mutation.stored.value) if isinstance(mutation, Put) else 100
