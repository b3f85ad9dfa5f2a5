"""Entries of a topic's log, for one reader.

They come from memory. If they are not there, one asynchronous read is started and `resume` is
called when it has ended. Callers then ask again, so they see whatever changed meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from managed_ledger.errors import CorruptStorage, DamagedEntries, LedgerClosed
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.runtime import Tasks, do_nothing
from pybroker.broker.persistent.entry_metadata import cached_for_clients, read_for_clients

log = logging.getLogger(__name__)

READ_RETRY_S: Final = 1.0

# Called with entries that are wanted and cannot be read, and the first of them that is wanted; None
# if they are not in the topic's own log. Called again for each attempt to get them.
OnDamage = Callable[[CorruptStorage, Position | None], None]


class EntryFetcher:
    """Reads entries from memory or asynchronously: one read at a time, whose run is kept here."""

    __slots__ = (
        "_damaged",
        "_held",
        "_ledger",
        "_on_damage",
        "_reading",
        "_resume",
        "_tasks",
        "_turns",
        "as_stored",
    )

    def __init__(
        self,
        ledger: ManagedLedger,
        tasks: Tasks,
        resume: Callable[[], None],
        on_damage: OnDamage,
    ) -> None:
        self._ledger = ledger
        self._on_damage = on_damage
        self._tasks = tasks
        self._resume = resume
        self._held: EntryRun | None = None
        self._damaged: DamagedEntries | None = None  # what the last read came to
        self._reading = False
        self._turns = 0  # counts drops: reads from before the latest are discarded
        self.as_stored = False  # not as Pulsar's clients get them

    def another(self) -> "EntryFetcher":
        """A second reader, for other positions of the same log."""
        made = EntryFetcher(self._ledger, self._tasks, self._resume, self._on_damage)
        made.as_stored = self.as_stored
        return made

    def fetch(
        self, position: Position, up_to: Position, max_entries: int, max_bytes: int
    ) -> EntryRun | None:
        """Entries from `position` on; None if there are none, or none yet."""
        run = self._from_held(position, up_to, max_entries)
        if run is None:
            wanted = position, up_to, max_entries, max_bytes
            if self.as_stored:
                run = self._ledger.read_cached(*wanted)
            else:
                run = cached_for_clients(self._ledger, *wanted)
        if run is None and not self._reading and self._ledger.has_entries(position, up_to):
            if self._damaged is not None and self._damaged.has(position):  # reading is useless
                tell = asyncio.get_running_loop().call_soon
                tell(self._tell_of_damage, self._damaged, position)
                return None
            self._reading = True
            self._tasks.start(self._read(position, up_to, max_entries, max_bytes), "read")
        return run

    def break_cycles(self) -> None:
        """Drops all references: no consumer is notified any more."""
        self._resume = self._on_damage = do_nothing

    def drop(self) -> None:
        self._held = self._damaged = None
        self._turns += 1

    def passed(self, position: Position) -> None:
        """Entries before `position` will not be requested again and need not stay in memory."""
        held = self._held
        if held is None:
            return
        if position >= (held.ledger_id, held.first_entry_id + len(held.entries)):
            self._held = None

    def _from_held(self, position: Position, up_to: Position, max_entries: int) -> EntryRun | None:
        held = self._held
        if held is None or held.ledger_id != position.ledger_id:
            return None
        start = position.entry_id - held.first_entry_id
        stop = min(start + max_entries, up_to.entry_id + 1 - held.first_entry_id)
        if start >= len(held.entries):
            self._held = None
        if not 0 <= start < len(held.entries):
            return None
        entries, counts = held.entries[start:stop], held.message_counts[start:stop]
        return EntryRun(held.ledger_id, position.entry_id, entries, counts)

    def _tell_of_damage(self, damaged: DamagedEntries, position: Position) -> None:
        if damaged is self._damaged:
            self._on_damage(damaged, position)

    async def _read(
        self, position: Position, up_to: Position, max_entries: int, max_bytes: int
    ) -> None:
        turn = self._turns
        try:
            wanted = position, up_to, max_entries, max_bytes
            if self.as_stored:
                found = await self._ledger.read(*wanted)
            else:
                found = await read_for_clients(self._ledger, *wanted)
            if turn == self._turns:
                self._held = found
        except LedgerClosed:
            return
        except DamagedEntries as error:
            log.error("%s: %s", self._ledger.name, error)
            if turn == self._turns:
                self._damaged = error
                self._on_damage(error, position)
                return
        except Exception as error:
            # Retried as long as a consumer waits for these entries, but not in a busy loop.
            log.error("Reading %s from %s failed: %s", self._ledger.name, position, error)
            await asyncio.sleep(READ_RETRY_S)
        finally:
            self._reading = False
        self._resume()
