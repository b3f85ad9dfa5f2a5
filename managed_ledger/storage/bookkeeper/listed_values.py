"""Keys that a node lists; their values never change, and each is in a ledger of its own.

A ledger is written and closed before a compare-and-set adds its key to the node. A value is read
once. If bookies do not answer, its key is unreadable for a while; other keys do not wait for it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from managed_ledger.errors import BadVersion, CorruptStorage, ManagedLedgerError
from managed_ledger.storage.backend import Versioned
from managed_ledger.storage.bookkeeper.formats.family import Listed, ListFamily, Stored
from managed_ledger.storage.bookkeeper.mirror_table import MirrorTable
from managed_ledger.storage.bookkeeper.value_ledgers import ValueLedgers
from managed_ledger.storage.operations import Put, Remove
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.errors import NoNode, ZooKeeperError
from managed_ledger.storage.zookeeper.operations import Create, Delete, Node, Operation, SetData

log = logging.getLogger(__name__)
AGAIN_S: Final = 5.0  # after bookies did not answer
Reading = tuple[Stored | None, str | None]  # a value, or the reason why it is unreadable


class ListedValues:
    def __init__(
        self,
        zookeeper: ZooKeeper,
        values: ValueLedgers,
        table: MirrorTable,
        look_at: Callable[[str], None],
    ) -> None:
        """`look_at` schedules a call of `read` for a folder."""
        self._zookeeper = zookeeper
        self._values = values
        self._table = table
        self._look_at = look_at
        self._listed: dict[str, Listed] = {}  # for keys whose values are in the table
        self._written: dict[str, int] = {}  # ledgers for keys that are not listed yet
        self._again: dict[str, None] = {}  # folders with keys that could not be read
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # --- reading

    async def read(self, family: ListFamily, path: str) -> dict[str, Reading]:
        """The readings of all keys of the folder: the values of listed keys, and (None, None) for
        keys that are no longer listed. Raises ZooKeeperError.
        """
        folder = family.folder_of(path) or ""
        gone: dict[str, Reading] = dict.fromkeys(self._table.keys(folder), (None, None))
        node = await self._node(path)
        try:
            listed = {} if node is None else family.split(path, node.value)
        except CorruptStorage as why:
            log.warning("%s", why)
            for key in gone:
                self._listed.pop(key, None)
            return dict.fromkeys(gone, (None, str(why)))
        found = {key: await self._value(family, key, each) for key, each in listed.items()}
        for key in gone.keys() - found.keys():
            self._listed.pop(key, None)
        return {**gone, **found}

    async def _value(self, family: ListFamily, key: str, listed: Listed) -> Reading:
        known: Versioned | None = self._table.known(key)
        if known is not None and self._listed.get(key) == listed:
            return Stored(known.value), None
        self._listed.pop(key, None)
        try:
            entry = await self._values.read_one(listed.ledger_id, listed.entry_id)
            value = family.value(key, entry)
        except CorruptStorage as why:
            return None, str(why)
        except ZooKeeperError:
            raise
        except ManagedLedgerError as why:
            log.warning("%r cannot be read now: %s", key, why)
            self._read_again(family.folder_of(family.path_of(key) or "") or "")
            return None, f"{key!r} cannot be read now; try again: {why}"
        self._listed[key] = listed
        return Stored(value), None

    def _read_again(self, folder: str) -> None:
        self._again[folder] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(AGAIN_S, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        folders, self._again = self._again, {}
        for folder in folders:
            self._look_at(folder)

    async def _node(self, path: str) -> Node | None:
        try:
            return await self._zookeeper.get(path)
        except NoNode:
            return None

    # --- changes

    async def change(
        self, family: ListFamily, path: str, mutation: Put | Remove
    ) -> Operation | None:
        """The operation on the node; None if there is nothing to change. Raises BadVersion,
        ManagedLedgerError.
        """
        node = await self._node(path)
        listed = {} if node is None else dict(family.split(path, node.value))
        key = mutation.key
        if isinstance(mutation, Remove):
            if listed.pop(key, None) is None:
                return None
        else:
            if key in listed:
                raise BadVersion(f"{key!r}: another process put it; read it and retry")
            value = mutation.stored.value
            if (ledger_id := self._written.get(key)) is None:
                entry = family.entry(key, value)
                ledger_id = await self._values.write_once(family.custom(key), entry)
                self._written[key] = ledger_id
            listed[key] = family.listed(key, value, ledger_id)
        joined = family.join(path, listed)
        if joined is None:
            return Delete(path)
        return Create(path, joined) if node is None else SetData(path, joined, node.version)

    def settle(self, family: ListFamily, mutation: Put | Remove, made: bool) -> int | None:
        """Call with the mutation's outcome. Returns a ledger that is no longer needed, if any."""
        key = mutation.key
        written = self._written.pop(key, None)
        if not made:
            return written
        if isinstance(mutation, Remove):
            before = self._listed.pop(key, None)
            return None if before is None else before.ledger_id
        if written is not None:
            self._listed[key] = family.listed(key, mutation.stored.value, written)
        return None
