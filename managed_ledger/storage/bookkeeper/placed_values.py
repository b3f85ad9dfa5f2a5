"""Places values in their nodes, or in ledgers that the nodes name.

A value is written to its ledger before the node names the ledger. A ledger that no longer holds the
current value is deleted.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from managed_ledger.storage.backend import ABSENT
from managed_ledger.storage.bookkeeper.formats.family import NO_LEDGER
from managed_ledger.storage.bookkeeper.formats.known import KnownFormats
from managed_ledger.storage.bookkeeper.value_ledgers import ValueLedgers
from managed_ledger.storage.operations import DeleteLedger, Put, Remove

Mutation = Put | Remove | DeleteLedger


def requires_absence(mutation: Mutation) -> bool:
    """Whether it is made only while there is no key that it names."""
    if isinstance(mutation, DeleteLedger) or mutation.only_while is None:
        return False
    return mutation.only_while.version == ABSENT


class PlacedValues:
    def __init__(self, formats: KnownFormats, ledgers: ValueLedgers) -> None:
        self._formats: Final = formats
        self._ledgers: Final = ledgers
        self._written_to: dict[str, int] = {}  # for values that are being put
        self._unused: list[tuple[str, int]] = []  # keys, with ledgers that they no longer need

    async def write(self, batch: Iterable[Mutation]) -> None:
        """Write values that do not belong in nodes to ledgers, concurrently. Raises
        ManagedLedgerError.
        """
        entries: dict[str, bytes] = {}
        for mutation in batch:
            if isinstance(mutation, DeleteLedger) or self._formats.is_shared(mutation.key):
                continue
            key = mutation.key
            self._written_to.pop(key, None)
            if isinstance(mutation, Put):
                stays = self._ledgers.writes(key, self._formats.ledger_id(key))
                if entry := self._formats.entry(key, mutation.stored.value, stays):
                    entries[key] = entry
        writes = [self._ledgers.write(key, entry) for key, entry in entries.items()]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        for key, outcome in zip(entries, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            self._written_to[key] = outcome

    def node(self, put: Put) -> bytes:
        """The content of the node, once `write` has returned. Raises CorruptStorage."""
        ledger_id = self._written_to.get(put.key, NO_LEDGER)
        return self._formats.node(put.key, put.stored.value, ledger_id)

    def made(self, mutation: Put | Remove) -> None:
        """The node has been written: the ledger with the previous value is no longer needed."""
        key = mutation.key
        before, now = self._formats.ledger_id(key), self._written_to.pop(key, NO_LEDGER)
        if before not in (NO_LEDGER, now):
            self.is_unused(key, before)
        if isinstance(mutation, Remove):
            self._formats.forget(key)
        else:
            self._formats.set_ledger_id(key, now)

    def failed(self, mutation: Put | Remove) -> None:
        self._written_to.pop(mutation.key, None)

    def is_unused(self, key: str, ledger_id: int) -> None:
        self._unused.append((key, ledger_id))

    async def delete_unused(self) -> None:
        while self._unused:
            await self._ledgers.delete(*self._unused.pop())
