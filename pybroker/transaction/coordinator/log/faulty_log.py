"""A coordinator's log whose records pass the fault points, for brokers that have any.

A record held at a fault point behaves like a record on a slow disk: later records of the same
transaction wait for it, those of other transactions do not.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.names import TxnId
from pybroker.faults.lane import Lanes
from pybroker.faults.passing import Passing
from pybroker.faults.points import BEHIND_DECISION, COMPLETED, DECIDED, RECORDS, Action, Recorded
from pybroker.faults.registry import Faults
from pybroker.faults.rule import Rule
from pybroker.transaction.coordinator.log.records import (
    AddPartitions,
    AddSubscriptions,
    ChangeStatus,
    Record,
)
from pybroker.transaction.coordinator.log.transaction_log import TransactionLog
from pybroker.transaction.coordinator.metadata_store import TransactionMetadataStore
from pybroker.transaction.snapshot_log import Done, InOrder, SnapshotLog
from pybroker.transaction.txn_status import TxnStatus

_WORDS = {
    TxnStatus.COMMITTING: "commit",
    TxnStatus.COMMITTED: "commit",
    TxnStatus.ABORTING: "abort",
    TxnStatus.ABORTED: "abort",
}
_ENDED = (TxnStatus.COMMITTED, TxnStatus.ABORTED)

Append = Callable[[Done], None]


class FaultyTransactionLog(TransactionLog):
    def __init__(
        self,
        faults: Faults,
        coordinator_id: int,
        log: SnapshotLog[Record],
        metadata: MetadataStore,
    ) -> None:
        super().__init__(coordinator_id, log, metadata)
        self._faults = faults
        self._coordinator_id = coordinator_id
        self._appending = Lanes[int]()  # by local id
        self._telling = Lanes[int]()
        self._failed: Callable[[Exception], None] = lambda _: None
        self._is_over = False

    @classmethod
    async def opened(
        cls,
        faults: Faults,
        coordinator_id: int,
        factory: ManagedLedgerFactory,
        metadata: MetadataStore,
    ) -> TransactionLog:
        plain = await TransactionLog.open(coordinator_id, factory, metadata)
        return cls(faults, coordinator_id, plain._log, metadata)

    def on_failure(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        super().on_failure(failed)

    def append(self, record: Record, done: Done, in_order: InOrder | None = None) -> None:
        if in_order is not None and any(map(self._faults.is_armed, BEHIND_DECISION)):
            in_order = None
        self._pass([record], done, lambda told: TransactionLog.append(self, record, told, in_order))

    def append_without_hurry(self, record: Record, done: Done) -> None:
        self._pass([record], done, partial(TransactionLog.append_without_hurry, self, record))

    def append_together(self, records: Sequence[Record], done: Done) -> None:
        self._pass(records, done, partial(TransactionLog.append_together, self, records))

    def abandon(self, error: Exception) -> None:
        self._is_over = True
        super().abandon(error)

    async def snapshot(self, store: TransactionMetadataStore) -> None:
        """Does nothing while a record waits: the store already includes the effects of that
        record.
        """
        if not self._appending:
            await super().snapshot(store)

    async def close(self) -> None:
        self._is_over = True
        await super().close()

    # -- passing

    def _pass(self, records: Sequence[Record], done: Done, append: Append) -> None:
        if not self._is_watched(records):
            append(done)
            return
        key = _local_id(records[-1])
        lane = self._appending.of(key)
        lane.run(partial(self._before, key, list(records), records, done, append))
        self._appending.tidy(key)

    def _is_watched(self, records: Sequence[Record]) -> bool:
        if self._faults.has_crashed or _local_id(records[-1]) in self._appending:
            return True
        points = map(_recorded, records)
        watches = self._faults.watches
        return any(watches(each.point_before) or watches(each.point_after) for each in points)

    def _before(
        self,
        key: int,
        left: list[Record],
        records: Sequence[Record],
        done: Done,
        append: Append,
    ) -> None:
        """`left`: the records of the entry that have not passed their points yet."""
        while left:
            record = left.pop(0)
            rule = self._strikes(_recorded(record).point_before, record)
            if rule is None:
                continue
            if rule.action is Action.FAIL:
                asyncio.get_running_loop().call_soon(self._fail, done, rule)
            else:
                go_on = partial(self._before, key, left, records, done, append)
                self._appending.of(key).wait(rule, partial(self._then_tidy, key, go_on))
            return
        if not (self._is_over or self._faults.has_crashed):
            append(partial(self._durable, key, records, done))

    def _then_tidy(self, key: int, job: Callable[[], None]) -> None:
        job()
        asyncio.get_running_loop().call_soon(self._appending.tidy, key)

    def _fail(self, done: Done, rule: Rule) -> None:
        error = ManagedLedgerError(str(rule.error()))
        done(error)
        self._failed(error)

    def _durable(
        self, key: int, records: Sequence[Record], done: Done, error: Exception | None
    ) -> None:
        if error is not None:
            done(error)
            return
        lane = self._telling.of(key)
        lane.run(partial(self._after, key, list(records), done))
        self._telling.tidy(key)

    def _after(self, key: int, left: list[Record], done: Done) -> None:
        while left:
            record = left.pop(0)
            rule = self._strikes(_recorded(record).point_after, record)
            if rule is not None:
                go_on = partial(self._after, key, left, done)
                self._telling.of(key).wait(rule, go_on)
                return
        done(None)

    def _strikes(self, point: str, record: Record) -> Rule | None:
        if not self._faults.watches(point):
            return None
        transaction = str(TxnId(self._coordinator_id, _local_id(record)))
        passing = Passing(point, transaction=transaction)
        if isinstance(record, AddPartitions):
            passing.topics = record.topics
        elif isinstance(record, AddSubscriptions):
            passing.topics = [topic for topic, _ in record.subscriptions]
            passing.subscription = next((name for _, name in record.subscriptions), "")
        elif isinstance(record, ChangeStatus):
            passing.detail = _WORDS.get(record.status, "") + (
                record.reason and f": {record.reason}"
            )
        passing.topic = next(iter(passing.topics), "")
        return self._faults.passing(passing)


def _recorded(record: Record) -> Recorded:
    if isinstance(record, ChangeStatus):
        return COMPLETED if record.status in _ENDED else DECIDED
    return RECORDS[type(record).__name__]


def _local_id(record: Any) -> int:
    local_id: int = record.local_id
    return local_id
