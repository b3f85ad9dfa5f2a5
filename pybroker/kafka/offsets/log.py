"""One offsets log: a part of the broker's groups, by hash of their ids, in a managed ledger.

    apply    at once, so that the next request sees it
    answer   only when the record is durable: `durable` of the group or producer

So no answer depends on a record that a crash may lose. If an append fails, this log is of no use
any more: `on_failure` says so, and its successor is read from the storage.

A transaction's end takes effect when its record is durable. If the broker crashed in between, the
outcome is requested of the coordinator, as by every participant (KIP-98, "correlated hard
failures"): after recovery, and while transactions are pending.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.housekeeper import Housekeeper
from managed_ledger.prompt import Prompt, fail, prompt
from pybroker.base.errors import InvalidTxnStatus, TransactionCoordinatorNotFound
from pybroker.base.names import TxnId
from pybroker.base.runtime import Tasks, do_nothing
from pybroker.kafka.offsets.records import (
    EndRecord,
    Key,
    OwnerRecord,
    Record,
    decode,
    encode,
    key_of,
    weight,
)
from pybroker.kafka.offsets.state import OffsetsState, Pending
from pybroker.transaction.paced_visits import PacedVisits
from pybroker.transaction.snapshot_log import SnapshotLog
from pybroker.transaction.txn_status import TransactionOutcomes, TxnAction, action_to_settle

_CURSOR: Final = "snapshot"
_CHECK_INTERVAL_S: Final = 5.0
_SNAPSHOT_AT_LEAST: Final = 1000  # records

log = logging.getLogger(__name__)


class _Ending:
    """The end of a transaction whose record is not durable yet."""

    __slots__ = ("action", "done")

    def __init__(self, action: TxnAction) -> None:
        self.action = action
        self.done: Prompt[None] = prompt()


class OffsetsLog:
    """The committed offsets of the groups of one log. `open` makes one by replaying it."""

    def __init__(
        self,
        records: SnapshotLog[Record],
        outcomes: TransactionOutcomes,
        housekeeper: Housekeeper,
        snapshot_records: int = _SNAPSHOT_AT_LEAST,
    ) -> None:
        self.state = OffsetsState()
        self._log = records
        self._outcomes = outcomes
        self._snapshot_records = snapshot_records
        self._last: dict[Key, Prompt[None]] = {}  # of each group with a record in flight
        self._endings: dict[Pending, _Ending] = {}
        self._visits = PacedVisits(housekeeper)
        self._tasks = Tasks(f"offsets log {records.name}")
        self._closed = False
        self.failure: Exception | None = None
        self.on_failure: Callable[[], object] = do_nothing
        # Called after a transaction has ended in a group.
        self.on_ended: Callable[[str], object] = do_nothing

    @classmethod
    async def open(
        cls,
        factory: ManagedLedgerFactory,
        name: str,
        outcomes: TransactionOutcomes,
        snapshot_records: int = _SNAPSHOT_AT_LEAST,
    ) -> "OffsetsLog":
        """Raises ManagedLedgerError if the log cannot be read."""
        records: SnapshotLog[Record] = await SnapshotLog.open(factory, name, _CURSOR, encode)
        opened = cls(records, outcomes, factory.housekeeper, snapshot_records)
        try:
            await records.replay(opened._replay)
        except BaseException:  # nobody else would close it
            await records.close()
            raise
        records.on_failure = opened._fail
        if opened.state.pending:
            opened._settle_all()
        return opened

    def _replay(self, entry: bytes) -> int:
        records = decode(entry, f"The offsets log {self._log.name}")
        for record in records:
            self.state.apply(record)
        return len(records)

    @property
    def name(self) -> str:
        return self._log.name

    # -- records

    def append(self, record: Record) -> None:
        """Takes effect now; `durable` of its group says when it may be answered."""
        last: Prompt[None] = prompt()
        key = key_of(record)
        self._last[key] = last
        self._log.append(record, partial(self._written, key, last))
        self.state.apply(record)
        self._snapshot_if_due()

    def append_without_hurry(self, record: Record) -> None:
        """Like `append`, for a record that recovery could do without."""
        self._log.append_without_hurry(record, _ignore_failure)
        self.state.apply(record)
        self._snapshot_if_due()

    def note_owner(self, group: str, user: str) -> None:
        """Call it after the append of another record of the group: it is this user's, if nobody's
        yet. "" is nobody.
        """
        if user and group not in self.state.owners and self.state.knows(group):
            self.append(OwnerRecord(group, user))

    def _written(self, key: Key, last: Prompt[None], error: Exception | None) -> None:
        if self._last.get(key) is last:
            del self._last[key]
        if error is None:
            last.set_result(None)
        else:
            fail(last, error)

    async def durable(self, key: Key) -> None:
        """Returns when everything that is known of the group or producer now is durable. Raises
        ManagedLedgerError.
        """
        if self.failure is not None:
            raise self.failure
        if (last := self._last.get(key)) is not None:
            await asyncio.shield(last)

    def next_order(self) -> int:
        """The order of the next commit."""
        return self.state.next_order

    # -- ends of transactions

    def end(
        self, txn_id: TxnId, group: str, action: TxnAction, not_later: bool = False
    ) -> Awaitable[None] | None:
        """End the transaction in the group; the future completes when that is durable and in
        effect. None if the group holds nothing of it. Idempotent. With `not_later`, the future
        fails with WouldWait if the record cannot be queued in this turn.

        Raises InvalidTxnStatus: the opposite end is in progress.
        """
        pending = Pending(txn_id, group)
        if (ending := self._endings.get(pending)) is not None:
            if ending.action is not action:
                raise InvalidTxnStatus(
                    f"Transaction {txn_id} is being ended by {ending.action.name}"
                )
            return ending.done
        if pending not in self.state.pending:
            return None
        return self._start_end(pending, action, not_later)

    def _start_end(
        self, pending: Pending, action: TxnAction, not_later: bool = False
    ) -> Prompt[None]:
        ending = self._endings[pending] = _Ending(action)
        record = EndRecord(pending.group, pending.txn_id, action)
        append = self._log.append_not_later if not_later else self._log.append
        append(record, partial(self._ended, pending, record))
        return ending.done

    def _ended(self, pending: Pending, record: EndRecord, error: Exception | None) -> None:
        ending = self._endings.pop(pending)
        if error is not None:
            fail(ending.done, error)
            return
        self.state.apply(record)
        ending.done.set_result(None)
        self.on_ended(pending.group)
        self._snapshot_if_due()

    def look_after_pending(self) -> None:
        """Call it when a transaction has committed offsets: its end may never be told."""
        if not self._closed:
            self._visits.visit_in(_CHECK_INTERVAL_S, self._settle_all)

    def _settle_all(self) -> None:
        """End the transactions that have ended elsewhere, a limited number per turn."""
        some = iter(dict.fromkeys(each.txn_id for each in self.state.pending))
        self._visits.visit(some, self._settle, self._all_settled)

    def _all_settled(self) -> None:
        if self.state.pending:
            self.look_after_pending()

    def _settle(self, txn_id: TxnId) -> None:
        with suppress(TransactionCoordinatorNotFound):  # not known yet: ask again later
            if (action := action_to_settle(self._outcomes, txn_id)) is not None:
                self._settle_as(txn_id, action)

    def _settle_as(self, txn_id: TxnId, action: TxnAction) -> None:
        for pending in [each for each in self.state.pending if each.txn_id == txn_id]:
            if pending not in self._endings and not self._closed:
                log.warning(
                    "Group %s: transaction %s was left open; ending it", pending.group, txn_id
                )
                self._start_end(pending, action)

    # -- keeping the log short

    def _snapshot_if_due(self) -> None:
        records = self._log.records_since_snapshot
        due = max(self._snapshot_records, 2 * self.state.record_count)
        if records >= due and not len(self._tasks) and not self._closed and self.failure is None:
            self._tasks.start(self.replace_past(), "snapshot")

    async def replace_past(self) -> None:
        """Replace the log by its live state. Raises ManagedLedgerError."""
        await self._log.replace_past(self._live(), weight, _has_everything)

    def _live(self) -> Iterator[Record]:
        yield from self.state.records()
        # Their records may be in what is dropped, though they are not in effect yet.
        for pending, ending in list(self._endings.items()):
            yield EndRecord(pending.group, pending.txn_id, ending.action)

    # -- its own end

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            self.on_failure()

    async def close(self) -> None:
        """Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._visits.cancel()
        await self._tasks.close()
        try:
            await self._log.close()
        except ManagedLedgerError:
            if self.failure is None:
                raise


def _ignore_failure(error: Exception | None) -> None:
    """A failure fails the log."""


async def _has_everything() -> None:
    """Everything that the snapshot replaces is in it."""
