"""Rollover: the current ledger is closed when it is full or old, and a new one created.

Appends are held until the old ledger has drained and the list with the new one is durable. If there
is no room for a new ledger, the log continues in its full ledger and retries later. On a shared
storage the full ledger is closed before the list is written, so if that write fails (without enough
bookies, for instance) the full ledger counts as ended. Any other failure means that another writer
owns the list.

A ledger that has ended (LedgerEnded) gets a successor at once, which takes over the unconfirmed
appends. A successor may end before it has stored anything, for instance while ZooKeeper still lists
a bookie that is gone. Then the pause before the next successor grows each time, because each
attempt sends all these appends to the other bookies again. If no successor can be created, appends
are refused; the first append after a second starts another attempt.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from managed_ledger.appender import Appender
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.empty_ledgers import noted_empty
from managed_ledger.errors import (
    LedgerClosed,
    LedgerEnded,
    ManagedLedgerError,
    StorageFull,
    StorageUnavailable,
)
from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.ledger_metadata import LedgerInfo, LedgerList
from managed_ledger.list_record import ListRecord
from managed_ledger.steady_time import SteadyTime
from managed_ledger.storage.backend import Backend

log = logging.getLogger(__name__)
ROLLOVER_RETRY_MS: Final = 10_000
SUCCESSOR_RETRY_MS: Final = 1_000  # while nothing can be appended
_FIRST_PAUSE_S: Final = 0.05  # before the successor of a ledger that ended empty
_LAST_PAUSE_S: Final = 1.0


def as_it_is(listed: LedgerList) -> LedgerList:
    return listed


class Rollover:
    __slots__ = (
        "_appender",
        "_backend",
        "_closed_at_ms",
        "_config",
        "_current_since_ms",
        "_ended",
        "_holds",
        "_index",
        "_name",
        "_not_before_ms",
        "_pause_s",
        "_record",
        "_stopped",
        "_task",
        "_time",
        "noted",
        "on_ended",
    )

    def __init__(
        self,
        name: str,
        backend: Backend,
        time: SteadyTime,
        config: ManagedLedgerConfig,
        index: LedgerIndex,
        record: ListRecord,
        appender: Appender,
        on_ended: Callable[[ManagedLedgerError | None], None],
    ) -> None:
        """`on_ended` is called with each new ledger, and with a permanent error."""
        self._name = name
        self._backend = backend
        self._time = time
        self._config = config  # only for its time limits, which do not change
        self._index = index
        self._record = record
        self._appender = appender
        self.on_ended = on_ended
        self.noted: Callable[[LedgerList], LedgerList] = as_it_is  # applied before a write
        self._closed_at_ms: dict[int, int] = {}  # in steady time; since the opening
        self._current_since_ms = time.now_ms()
        self._not_before_ms = self._current_since_ms + config.min_rollover_time_ms
        self._task: asyncio.Task[ManagedLedgerError | None] | None = None
        self._stopped = False
        self._holds = False
        self._ended: ManagedLedgerError | None = None  # why nothing can be appended now
        self._pause_s = 0.0

    @property
    def due_ms(self) -> int | None:
        """When the current ledger will have the maximum age; None: it is empty and stays."""
        if not self._appender.queued_entries or self._ended is not None:
            return None
        return self._current_since_ms + self._config.max_rollover_time_ms

    def when_full(self) -> None:
        self._start_from(self._not_before_ms)

    def when_troubled(self, ended: LedgerEnded | LedgerClosed | None) -> None:
        """The current ledger has ended or has another writer; None: an append has to wait."""
        if isinstance(ended, LedgerClosed):
            self.on_ended(ended)
        elif ended is not None:
            self._ended = ended
            if self._task is None and not self._stopped:
                self._start()
        elif self._ended is not None and self._task is None and not self._stopped:
            if self._time.now_ms() >= self._not_before_ms:
                self._start()
            else:
                asyncio.get_running_loop().call_soon(self._appender.fail_held, self._ended)

    def when_old(self) -> None:
        if (due_ms := self.due_ms) is not None:
            self._start_from(due_ms)

    async def now(self) -> None:
        """Roll over unless the current ledger is empty. Raises the reason for a failure."""
        if error := await asyncio.shield(self._task or self._start()):
            raise error

    async def settled(self) -> None:
        """Returns when no rollover is in progress."""
        while self._task is not None:
            await asyncio.shield(self._task)

    def stop(self) -> None:
        """Begin no more rollovers."""
        self._stopped = True

    def aged(self) -> list[LedgerInfo]:
        """The ledgers, with their closing times in steady time."""
        closed = self._closed_at_ms
        return [
            replace(info, closed_at_ms=closed[info.ledger_id]) if info.ledger_id in closed else info
            for info in self._index.infos()
        ]

    def _start_from(self, due_ms: int) -> None:
        if self._task is None and not self._stopped and self._time.now_ms() >= due_ms:
            self._start()

    def _start(self) -> "asyncio.Task[ManagedLedgerError | None]":
        self._task = asyncio.get_running_loop().create_task(self._roll())
        if not self._holds:
            self._holds = True
            self._appender.hold()
        return self._task

    async def _roll(self) -> ManagedLedgerError | None:
        try:
            await self._appender.drained()
            if self._index.current_entries or self._ended is not None:
                await self._pause_if_empty()
                await self._add_ledger()
                self._ended = None
                self.on_ended(None)
            return None
        except (StorageFull, StorageUnavailable) as error:
            self._try_later(error)
            return error
        except ManagedLedgerError as error:
            self.on_ended(error)
            return error
        finally:
            self._task = None
            if self._ended is None:
                self._holds = False
                self._appender.release()
            else:
                self._appender.fail_held(self._ended)

    async def _pause_if_empty(self) -> None:
        if self._index.current_entries:
            self._pause_s = 0.0
            return
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LAST_PAUSE_S)
        await asyncio.sleep(self._pause_s)

    def _try_later(self, error: ManagedLedgerError) -> None:
        if self._ended is None:
            log.warning("%s keeps writing to its full ledger: %s", self._name, error)
            self._not_before_ms = self._time.now_ms() + ROLLOVER_RETRY_MS
        else:
            log.warning("%s refuses messages until it has a new ledger: %s", self._name, error)
            self._not_before_ms = self._time.now_ms() + SUCCESSOR_RETRY_MS
            self._ended = error

    async def _add_ledger(self) -> None:
        ledger_id = self._backend.new_ledger_id()
        now_ms = self._time.now_ms()
        current = self._index.infos()[-1]
        if self._backend.is_shared:  # a list may count only the entries of closed ledgers
            await self._backend.close_ledger(current.ledger_id)
            self._ended = self._ended or LedgerEnded(f"ledger {current.ledger_id} is full")
        record = self._record.queued
        if current.entries:
            full = replace(current, closed_at_ms=self._time.written_ms())
            ledgers = (*record.ledgers[:-1], full, LedgerInfo(ledger_id))
            listed = replace(record, ledgers=ledgers)
            await self._record.write(self.noted(listed), new_ledger_id=ledger_id)
            self._index.roll_over(full, ledger_id)
            self._closed_at_ms[full.ledger_id] = now_ms
        else:  # it has ended empty
            ledgers = (*record.ledgers[:-1], LedgerInfo(ledger_id))
            deleting = (*record.deleting, current.ledger_id)
            is_only = len(ledgers) == 1
            properties = noted_empty(record, ledger_id) if is_only else record.properties
            listed = replace(record, ledgers=ledgers, deleting=deleting, properties=properties)
            await self._record.write(self.noted(listed), new_ledger_id=ledger_id)
            self._index.replace_current(ledger_id)
        self._current_since_ms = now_ms
        self._not_before_ms = now_ms + self._config.min_rollover_time_ms
