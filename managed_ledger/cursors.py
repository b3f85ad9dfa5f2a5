"""The cursors of one managed ledger: restores, creates, writes and deletes them."""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType

from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.ledger_metadata import CursorRecord, cursor_key, cursor_name, cursors_prefix
from managed_ledger.position import Position
from managed_ledger.storage.backend import KeyAt, MetadataStore


def do_nothing(*news: object) -> None:
    """Replaces callbacks after the managed ledger was closed."""


class Cursors:
    __slots__ = (
        "_by_name",
        "_dirty",
        "_index",
        "_ledger_name",
        "_metadata",
        "on_dirty",
    )

    def __init__(self, ledger_name: str, metadata: MetadataStore, index: LedgerIndex) -> None:
        self._ledger_name = ledger_name
        self._metadata = metadata
        self._index = index
        self._by_name: dict[str, ManagedCursor] = {}
        self._dirty: dict[ManagedCursor, None] = {}
        self.on_dirty: Callable[[], None] = do_nothing

    @property
    def by_name(self) -> Mapping[str, ManagedCursor]:
        return MappingProxyType(self._by_name)

    def tell_again(self) -> None:
        """Report dirty cursors again: their write may now be due sooner."""
        if self._dirty:
            self.on_dirty()

    def recover(self) -> None:
        for key in self._metadata.keys(cursors_prefix(self._ledger_name)):
            stored = self._metadata.get(key)
            assert stored is not None
            record = CursorRecord.decode(stored.value, key)
            name = cursor_name(key)
            cursor = self._durable(name, record.mark_delete_position, record.properties)
            cursor.restore(record)
            self._by_name[name] = cursor

    async def open(
        self, name: str, start: Position | None, properties: Mapping[str, str]
    ) -> ManagedCursor:
        """The durable cursor; exists at once, so that it holds back trimming; durable when this
        returns.
        """
        cursor = self._by_name.get(name)
        if cursor is None:
            cursor = self._durable(name, self._starting_position(start), properties)
            _asked(cursor, start)
            self._by_name[name] = cursor
            cursor.mark_new()
        try:
            await cursor.flush()
        except ManagedLedgerError:
            if cursor is self._by_name.get(name) and not self._is_stored(name):
                del self._by_name[name]
                self._dirty.pop(cursor, None)
            raise
        return cursor

    def _is_stored(self, name: str) -> bool:
        """Whether the cursor has been written. A written one is kept after a failure, because a
        recreated one would begin elsewhere.
        """
        return self._metadata.get(cursor_key(self._ledger_name, name)) is not None

    def new_non_durable(self, name: str, start: Position | None) -> ManagedCursor:
        assert name not in self._by_name
        cursor = ManagedCursor(name, self._index, self._starting_position(start), {})
        _asked(cursor, start)
        self._by_name[name] = cursor
        return cursor

    async def delete(self, name: str, only_while: KeyAt | None = None) -> None:
        """Idempotent. Raises BadVersion if `only_while` does not hold."""
        cursor = self._by_name.pop(name, None)
        if cursor is None:
            return
        self._dirty.pop(cursor, None)
        if not cursor.durable:
            return
        cursor.retired = True
        try:
            key = cursor_key(self._ledger_name, name)
            await self._metadata.delete(key, only_while=only_while)
        except ManagedLedgerError:
            cursor.retired = False
            self._by_name[name] = cursor
            self._became_dirty(cursor)  # it may have been dirty before, or become so meanwhile
            raise

    def slowest_durable(self) -> Position | None:
        marks = [cursor.mark_delete_position for cursor in self._by_name.values() if cursor.durable]
        return min(marks, default=None)

    def skip_removed(self) -> None:
        for cursor in self._by_name.values():
            cursor.skip_removed()

    async def finish(self) -> None:
        """Write dirty cursors, and wait for all writes: none is in flight when this returns or
        raises. Raises the first failure.
        """
        self._dirty = {}
        durable = [cursor for cursor in self._by_name.values() if cursor.durable]
        outcomes = await asyncio.gather(
            *[cursor.flush() for cursor in durable], return_exceptions=True
        )
        await self._metadata.release(cursor_key(self._ledger_name, each.name) for each in durable)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def flush_dirty(self) -> None:
        """Write all dirty cursors together. Raises the first failure."""
        dirty, self._dirty = self._dirty, {}
        if dirty:
            await asyncio.gather(*[cursor.flush() for cursor in dirty])

    def retire(self) -> None:
        """Stop writing, and drop all references back to this object."""
        for cursor in self._by_name.values():
            cursor.retire()
        self._dirty.clear()
        self.on_dirty = do_nothing

    def _durable(
        self, name: str, mark_delete_position: Position, properties: Mapping[str, str]
    ) -> ManagedCursor:
        return ManagedCursor(
            name,
            self._index,
            mark_delete_position,
            properties,
            store=self._store,
            on_dirty=self._became_dirty,
        )

    def _store(self, name: str, value: bytes) -> "asyncio.Future[int]":
        return self._metadata.put(cursor_key(self._ledger_name, name), value)

    def _became_dirty(self, cursor: ManagedCursor) -> None:
        if not self._dirty:
            self.on_dirty()
        self._dirty[cursor] = None

    def _starting_position(self, start: Position | None) -> Position:
        last = self._index.last_confirmed
        return last if start is None else self._index.previous_position(min(start, last).after)


def _asked(cursor: ManagedCursor, start: Position | None) -> None:
    if start is not None:
        cursor.begin_after(start)
