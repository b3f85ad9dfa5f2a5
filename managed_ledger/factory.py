"""Opens managed ledgers, and does the periodic work for all of them.

Dirty cursors are written together, one flush interval (by default a second) after the first of them
became dirty. A ledger with activity is visited a while later, rolled over if it is old, and
trimmed; an idle ledger costs nothing. The creator of the backend opens it before the factory and
closes it afterwards.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from managed_ledger.config import Clock, ManagedLedgerConfig
from managed_ledger.cursors import Cursors, do_nothing
from managed_ledger.deletion import all_done, delete_managed_ledger, sweep
from managed_ledger.errors import LedgerClosed
from managed_ledger.housekeeper import Housekeeper
from managed_ledger.ledger import ManagedLedger
from managed_ledger.ledger_metadata import (
    LEDGERS_PREFIX,
    LedgerList,
    cursor_key,
    cursor_name,
    cursors_prefix,
    ledgers_key,
)
from managed_ledger.list_record import ListRecord
from managed_ledger.recovery import recover_list
from managed_ledger.shared_task import shared_task
from managed_ledger.steady_time import SteadyTime
from managed_ledger.storage.backend import Backend, KeyAt
from managed_ledger.storage.commit_stats import CommitStats
from managed_ledger.storage.fullness import EntryLimit, Fullness

log = logging.getLogger(__name__)
DEFAULT_CONFIG: Final = ManagedLedgerConfig()
_WRITTEN_AT_ONCE: Final = 200
_OPENINGS_END_WITHIN_S: Final = 30.0
T = TypeVar("T")


class ManagedLedgerFactory:
    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        config: ManagedLedgerConfig = DEFAULT_CONFIG,
        trim_interval_ms: int = 10_000,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._config = config
        self._trim_interval_s = trim_interval_ms / 1000
        self._ledgers: dict[str, ManagedLedger] = {}
        self._opening: dict[str, asyncio.Task[ManagedLedger | None]] = {}
        self._waiting: Counter[str] = Counter()  # the number of waiters for each opening
        self._not_taken: dict[str, ManagedLedger] = {}  # opened, but no waiter has continued yet
        self._deleting: dict[str, asyncio.Task[None]] = {}
        # Ledgers with dirty cursors, by flush interval.
        self._dirty: dict[int, dict[ManagedLedger, None]] = {}
        self._work: dict[asyncio.Task[None], None] = {}  # work that visits have started
        self._closed = False
        self.housekeeper = Housekeeper()
        # Called with the name of a managed ledger that was fenced: its user must open it again.
        self.on_fenced: Callable[[str], None] = do_nothing

    async def open(self, name: str, config: ManagedLedgerConfig | None = None) -> ManagedLedger:
        """The managed ledger of that name; created if it does not exist, shared if it is open."""
        while True:
            if (opening := self._opening.get(name)) is None or opening.done():
                if (ledger := self.opened(name)) is not None:
                    self._not_taken.pop(name, None)
                    return ledger
                if self._closed:
                    raise LedgerClosed(f"{name} cannot be opened: the storage is closing")
                work = self._open_if_wanted(name, config or self._config)
                own(self._opening, name, work)
            if (ledger := await self._wait_for(name)) is not None:
                return ledger

    @property
    def fullness(self) -> Fullness:
        return self._backend.fullness

    @property
    def entry_limit(self) -> EntryLimit:
        return self._backend.entry_limit

    @property
    def commit_stats(self) -> CommitStats:
        return self._backend.commit_stats

    @property
    def short_of_copies(self) -> int:
        """The number of open ledgers whose new entries get fewer copies than configured; 0
        if the storage makes no copies.
        """
        return self._backend.short_of_copies

    @property
    def cached_bytes(self) -> int | None:
        """The size of the read cache in bytes; None if there is no cache."""
        return self._backend.cached_bytes

    def refusal(self) -> str | None:
        """Why a message would be refused now; None if it would probably be accepted."""
        return self._backend.refusal()

    @property
    def open_count(self) -> int:
        """The number of open managed ledgers; may include some that have just been closed."""
        return len(self._ledgers)

    def opened_names(self) -> list[str]:
        """The names of open managed ledgers; may include some that have just been closed."""
        return list(self._ledgers)

    def opened(self, name: str) -> ManagedLedger | None:
        """The managed ledger, if it is open now."""
        ledger = self._ledgers.get(name)
        return None if ledger is None or ledger.closed else ledger

    def exists(self, name: str) -> bool:
        stored = self._backend.metadata.get(ledgers_key(name))
        return stored is not None and not LedgerList.decode(stored.value, name).deleted

    def names(self, prefix: str = "", suffix: str = "") -> list[str]:
        """The managed ledgers with this prefix and suffix, sorted."""
        keys = self._backend.metadata.keys(LEDGERS_PREFIX + prefix)
        names = [key.removeprefix(LEDGERS_PREFIX) for key in keys if key.endswith(suffix)]
        return [name for name in names if self.exists(name)]

    def properties(self, name: str) -> Mapping[str, str]:
        """The durable properties; the managed ledger need not be open."""
        stored = self._backend.metadata.get(ledgers_key(name))
        return {} if stored is None else LedgerList.decode(stored.value, name).properties

    def ledger_ids(self, name: str) -> list[int]:
        """The ids of the managed ledger's ledgers, oldest first; it need not be open."""
        stored = self._backend.metadata.get(ledgers_key(name))
        found = LedgerList() if stored is None else LedgerList.decode(stored.value, name)
        return [info.ledger_id for info in found.ledgers]

    def has_cursor(self, name: str, cursor: str) -> bool:
        """Whether there is a durable cursor of that name; the managed ledger need not be open."""
        return self._backend.metadata.get(cursor_key(name, cursor)) is not None

    def cursor_names(self, name: str) -> list[str]:
        """The durable cursors; the managed ledger need not be open."""
        return list(map(cursor_name, self._backend.metadata.keys(cursors_prefix(name))))

    async def openings_ended(self, concerned: Callable[[str], bool]) -> None:
        """Wait for the current openings of these managed ledgers, even if no other caller waits for
        them; gives up after a limit, with a warning.
        """
        running = {opening: name for name, opening in self._opening.items() if concerned(name)}
        if running:
            _, late = await asyncio.wait(running, timeout=_OPENINGS_END_WITHIN_S)
            for name in sorted(running[opening] for opening in late):
                log.warning("%s is still being opened, and may fence its next writer", name)

    async def delete(self, name: str, only_while: KeyAt | None = None) -> None:
        """Delete the managed ledger with all its contents, open or not. Idempotent.

        Raises ManagedLedgerError; the managed ledger is closed even then. Raises BadVersion if
        another process has taken it over, or if `only_while` does not hold: this protects a managed
        ledger of the same name that another process has created meanwhile.
        """
        while name in self._opening:
            await asyncio.wait([self._opening[name]])
        if name not in self._deleting:
            if self._backend.metadata.get(ledgers_key(name)) is None:
                return
            own(self._deleting, name, self._delete(name, only_while))
        await asyncio.shield(self._deleting[name])

    async def delete_all(self, prefix: str, only_while: KeyAt | None = None) -> None:
        """Delete every managed ledger with this prefix, including partly deleted ones."""
        keys = self._backend.metadata.keys(LEDGERS_PREFIX + prefix)
        names = dict.fromkeys(key.removeprefix(LEDGERS_PREFIX) for key in keys)
        names.update(dict.fromkeys(name for name in self._opening if name.startswith(prefix)))
        await all_done(self.delete(name, only_while) for name in names)

    async def delete_cursor(self, name: str, cursor: str, only_while: KeyAt | None = None) -> None:
        """Delete a durable cursor, whether or not its managed ledger is open. Idempotent. Raises
        BadVersion if `only_while` does not hold.
        """
        if (ledger := self.opened(name)) is not None:
            await ledger.delete_cursor(cursor, only_while)
        await self._backend.metadata.delete(cursor_key(name, cursor), only_while=only_while)

    async def sweep(self) -> None:
        """Call at start, before any managed ledger is opened; see managed_ledger.deletion."""
        await sweep(self._backend)

    async def close(self) -> None:
        """Close every managed ledger; the backend stays open."""
        self._closed = True
        self.housekeeper.close()
        await asyncio.gather(
            *self._work,
            *self._opening.values(),
            *self._deleting.values(),
            return_exceptions=True,
        )
        closing = [ledger.close() for ledger in self._ledgers.values()]
        outcomes = await asyncio.gather(*closing, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _wait_for(self, name: str) -> ManagedLedger | None:
        self._waiting[name] += 1
        try:
            ledger = await asyncio.shield(self._opening[name])
            self._not_taken.pop(name, None)
            return ledger
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name]
                if (left := self._not_taken.pop(name, None)) is not None:  # all were cancelled
                    own(self._opening, name, self._close_unused(left))

    async def _open_if_wanted(self, name: str, config: ManagedLedgerConfig) -> ManagedLedger | None:
        """Open; returns None, with the managed ledger closed, if no caller waits any more."""
        ledger = await self._open(name, config)
        if name in self._waiting:
            self._not_taken[name] = ledger
            return ledger
        return await self._close_unused(ledger)

    async def _close_unused(self, ledger: ManagedLedger) -> ManagedLedger | None:
        """Close a managed ledger that no caller has taken. Runs as an opening, so that the next
        opening waits for it, and returns None like an opening without waiters.
        """
        await ledger.close()
        return None

    async def _open(self, name: str, config: ManagedLedgerConfig) -> ManagedLedger:
        self.housekeeper.start()
        await self._end_earlier(name)
        time = SteadyTime(self._clock)
        index, record = await recover_list(name, self._backend, time)
        await self._backend.metadata.refresh(cursors_prefix(name))
        cursors = Cursors(name, self._backend.metadata, index)
        cursors.recover()
        ledger = ManagedLedger(name, self._backend, time, config, index, record, cursors, self)
        self._ledgers[name] = ledger
        if ledger.has_old_ledgers:
            ledger.touch()
        return ledger

    async def _delete(self, name: str, only_while: KeyAt | None) -> None:
        ledger = self._ledgers.pop(name, None)
        if ledger is not None:
            await ledger.delete(only_while)
        else:
            record = ListRecord(self._backend.metadata, ledgers_key(name))
            await delete_managed_ledger(name, self._backend, record, only_while)

    async def _end_earlier(self, name: str) -> None:
        """Wait for the end of earlier managed ledgers of this name: their closing or deletion."""
        if name in self._deleting:
            await asyncio.wait([self._deleting[name]])
        earlier = self._ledgers.pop(name, None)
        if earlier is not None:
            await earlier.close()

    # -- periodic work

    def became_dirty(self, ledger: ManagedLedger) -> None:
        interval_ms = ledger.config.cursor_flush_interval_ms
        dirty = self._dirty.get(interval_ms)
        if dirty is None:
            dirty = self._dirty[interval_ms] = {}
            self.housekeeper.visit_in(interval_ms / 1000, partial(self._write_cursors, interval_ms))
        dirty[ledger] = None

    def was_closed(self, ledger: ManagedLedger) -> None:
        """Forget a closed managed ledger: everything is durable."""
        if self._ledgers.get(ledger.name) is ledger:
            del self._ledgers[ledger.name]

    def was_fenced(self, ledger: ManagedLedger) -> None:
        self.on_fenced(ledger.name)

    def _write_cursors(self, interval_ms: int) -> None:
        """Write the cursors of some ledgers; the others follow in the next turn."""
        dirty = self._dirty[interval_ms]
        written = list(islice(dirty, _WRITTEN_AT_ONCE))
        for ledger in written:
            del dirty[ledger]
        self._start(self._flush([ledger for ledger in written if not ledger.closed]))
        if dirty:
            self.housekeeper.visit_in(0, partial(self._write_cursors, interval_ms))
        else:
            del self._dirty[interval_ms]

    async def _flush(self, ledgers: list[ManagedLedger]) -> None:
        writes = [ledger.flush_cursors() for ledger in ledgers]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        for ledger in ledgers:
            if ledger.has_old_ledgers:  # recent acknowledgements may allow trimming
                ledger.touch()
        if errors := [outcome for outcome in outcomes if outcome is not None]:
            log.error("cursors of %d logs could not be written: %s", len(errors), errors[0])

    def became_active(self, ledger: ManagedLedger) -> None:
        if ledger.visit is not None:
            ledger.visit.cancel()
        self._visit_in(ledger, self._trim_interval_s)

    def _visit_in(self, ledger: ManagedLedger, delay_s: float) -> None:
        work = partial(self._keep_in_order, ledger)
        ledger.visit = self.housekeeper.visit_in(delay_s, work)

    def _keep_in_order(self, ledger: ManagedLedger) -> None:
        ledger.visit = None
        if ledger.closed:
            return
        ledger.settle_down()
        ledger.roll_over_when_old()
        if ledger.has_old_ledgers:
            self._start(self._trim(ledger))
        else:
            self._visit_again(ledger)

    async def _trim(self, ledger: ManagedLedger) -> None:
        try:
            await ledger.trim()
        except Exception:  # a failure must not prevent the next visit
            log.exception("%s could not be trimmed", ledger.name)
            ledger.touch()
        self._visit_again(ledger)

    def _visit_again(self, ledger: ManagedLedger) -> None:
        """Schedule the next visit if timed work is pending."""
        later_s = ledger.next_visit_s()
        if ledger.visit is None and later_s is not None and not ledger.closed:
            self._visit_in(ledger, max(later_s, self._trim_interval_s))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work[task] = None
        task.add_done_callback(lambda task: self._work.pop(task, None))


def own(tasks: "dict[str, asyncio.Task[T]]", name: str, work: Coroutine[Any, Any, T]) -> None:
    """Run `work` as a task that `tasks` holds under this name until it ends. Waiters must shield
    it.
    """
    task = tasks[name] = shared_task(work)

    def ended(_: object) -> None:
        if tasks.get(name) is task:
            del tasks[name]

    task.add_done_callback(ended)
