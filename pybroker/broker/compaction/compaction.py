"""The compaction of one topic: its progress, its compacted log, and when it continues.

One property of the topic's managed ledger names the horizon and the active log. Until the property
is durable, the old log is in use, and a crash leaves a log that no topic names. Nothing after the
horizon is trimmed, because it is still to be compacted.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from managed_ledger.cursor import ManagedCursor
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.housekeeper import Visit
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.trim import Retention
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName, compacted_log, compacted_logs
from pybroker.base.runtime import Clock, Tasks
from pybroker.broker.compaction.compacted_log import BadRecord, CompactedLog
from pybroker.broker.compaction.tombstones import PROPERTY as TOMBSTONES
from pybroker.broker.compaction.tombstones import tombstones_of
from pybroker.broker.dispatch.entry_reader import HiddenRanges
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.policies.deleted_keys import COMPACTION_DELETE_RETENTION
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.table import COMPACTION_THRESHOLD

if TYPE_CHECKING:
    from pybroker.broker.compaction.compactor import Outcome

log = logging.getLogger(__name__)

PROPERTY: Final = "compaction"  # a property of the topic's managed ledger
NO_TURN: Final = asyncio.Semaphore(1_000)  # used until the real semaphore is known
_FOR_EVER: Final = Retention(-1, -1)


class Status(Enum):
    """Names of Apache Pulsar's LongRunningProcessStatus."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class Record:
    generation: int
    horizon: Position
    last: Position | None  # the last kept entry
    last_index: int
    entries: int
    size_bytes: int

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> "Record":
        found = json.loads(text)
        last = None if found["last"] is None else Position(*found["last"])
        return cls(**found | {"horizon": Position(*found["horizon"]), "last": last})


@dataclass(frozen=True, slots=True)
class Results:
    """Statistics since the topic was loaded."""

    left_out: int = 0  # messages, by the last compaction
    left_out_in_all: int = 0
    read_bytes: int = 0  # by the last compaction
    succeeded: int = 0
    failed: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    duration_ms: int = 0


class Follower(Protocol):
    """A subscription as compaction needs it."""

    @property
    def durable(self) -> bool: ...
    @property
    def cursor(self) -> ManagedCursor: ...


class CompactedTopic(Protocol):
    """The topic as compaction needs it."""

    @property
    def name(self) -> TopicName: ...
    @property
    def ledger(self) -> ManagedLedger: ...
    @property
    def factory(self) -> ManagedLedgerFactory: ...
    @property
    def max_read_position(self) -> Position: ...
    @property
    def hidden(self) -> HiddenRanges: ...
    @property
    def tasks(self) -> Tasks: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def policies(self) -> Effective: ...
    @property
    def compaction_turn(self) -> asyncio.Semaphore: ...
    def each_subscription(self) -> Iterable[Follower]: ...


class Compaction:
    def __init__(self, topic: CompactedTopic) -> None:
        self._topic = topic
        found = topic.ledger.properties.get(PROPERTY)
        self._record = None if found is None else Record.decode(found)
        self._visit: Visit | None = None
        self._watched = False
        self._keep_all_from: Position | None = None  # set while a compaction is running
        self._given_up_before = EARLIEST  # never compacted, because the topic was truncated
        self.status = Status.NOT_RUN
        self.last_error = ""
        self.results = Results()
        topic.ledger.trimmer.keep(self._kept_from)

    def __str__(self) -> str:
        return f"The compaction of {self._topic.name}"

    # -- results

    @property
    def horizon(self) -> Position | None:
        """The position up to which everything is compacted; None if there was no compaction."""
        return self._record.horizon if self._record is not None else None

    def last_message(self, position: Position, index: int) -> tuple[Position, int]:
        """The last message for a consumer that reads compacted: the topic's last message, which is
        given, or the last kept one.
        """
        record = self._record
        if record is None or (position.entry_id >= 0 and position > record.horizon):
            return position, index
        return (EARLIEST, -1) if record.last is None else (record.last, record.last_index)

    @property
    def kept_size(self) -> tuple[int, int]:
        """The number of entries, and their bytes."""
        return (0, 0) if self._record is None else (self._record.entries, self._record.size_bytes)

    def ledger_info(self) -> tuple[int, int, int] | None:
        """The id of the first ledger of the compacted log, its entries, their bytes; None if there
        is no compacted log.
        """
        if (record := self._record) is None:
            return None
        ids = self._topic.factory.ledger_ids(self._name(record.generation))
        return (ids[0] if ids else -1), record.entries, record.size_bytes

    async def log(self) -> CompactedLog | None:
        """The compacted log. Raises ManagedLedgerError."""
        if self._record is None:
            return None
        if self._lost:
            raise BadRecord(f"{self}: the compacted log is lost; compact again")
        return CompactedLog(await self._open(self._record.generation))

    @property
    def _lost(self) -> bool:
        """Whether the compacted log is missing, for example in a copy of a data directory."""
        record = self._record
        return record is not None and not self._topic.factory.exists(self._name(record.generation))

    def _name(self, generation: int) -> str:
        return compacted_log(self._topic.name, generation)

    async def _open(self, generation: int) -> ManagedLedger:
        config = replace(self._topic.ledger.config, retention=_FOR_EVER)
        return await self._topic.factory.open(self._name(generation), config)

    def _kept_from(self) -> Position:
        if self._keep_all_from is not None:
            return self._keep_all_from
        if self._record is not None:
            return max(self._record.horizon.after, self._given_up_before)
        threshold = self._threshold_bytes
        return max(EARLIEST.after, self._given_up_before) if threshold > 0 else LATEST

    # -- when to compact

    @property
    def _threshold_bytes(self) -> int:
        return self._topic.policies[COMPACTION_THRESHOLD]

    def watch(self) -> None:
        """Compact whenever more than the threshold has been published."""
        if not self._watched:
            self._watched = True
            self._topic.ledger.on_visit += (self._check_soon,)
            self._check_soon()

    def _check_soon(self) -> None:
        if self._visit is None and self._threshold_bytes > 0:
            interval_s = self._topic.config.broker_service_compaction_monitor_interval_in_seconds
            self._visit = self._topic.ledger.housekeeper.visit_in(interval_s, self._check)

    def _check(self) -> None:
        self._visit = None
        if self._topic.ledger.closed or self.status is Status.RUNNING:
            return
        if 0 < self._threshold_bytes < self._bytes_behind():
            self.start()

    def _bytes_behind(self) -> int:
        """The size of the log after the horizon, as if all entries had the same size."""
        ledger = self._topic.ledger
        if self._record is None:
            return ledger.total_size_bytes
        entries = sum(info.entries for info in ledger.ledgers())
        behind = ledger.count_between(self._record.horizon, ledger.last_confirmed)
        return ledger.total_size_bytes * behind // max(1, entries)

    def check_not_running(self) -> None:
        """Raises Conflict if it is running."""
        if self.status is Status.RUNNING:
            raise Conflict(f"{self} is already running: wait until it ends")

    def give_up_before(self, position: Position) -> None:
        """Messages before `position` will not be compacted, so trimming need not wait for it.
        Raises Conflict.
        """
        self.check_not_running()
        self._given_up_before = position

    def start(self) -> None:
        """Compact everything up to what may be read now. Raises Conflict."""
        self.check_not_running()
        self.status = Status.RUNNING
        self._topic.tasks.start(self._run(), "compaction")

    # -- compacting

    async def _run(self) -> None:
        began_ms = self._topic.clock.now_ms()
        try:
            async with self._topic.compaction_turn:
                read_bytes = self.kept_size[1] + self._bytes_behind()
                outcome = await self._compact()
        except Exception as error:
            self.status, self.last_error = Status.ERROR, str(error)
            failed, now_ms = self.results.failed + 1, self._topic.clock.now_ms()
            self.results = replace(self.results, failed=failed, failed_ms=now_ms)
            log.error("%s failed: %s", self, error)
            return
        finally:
            self._keep_all_from = None
            self._topic.ledger.touch()  # more may be trimmed now
        self.status, self.last_error = Status.SUCCESS, ""
        ended_ms = self._topic.clock.now_ms()
        left_out = outcome.left_out if outcome is not None else 0
        self.results = replace(
            self.results,
            left_out=left_out,
            left_out_in_all=self.results.left_out_in_all + left_out,
            read_bytes=read_bytes,
            succeeded=self.results.succeeded + 1,
            succeeded_ms=ended_ms,
            duration_ms=max(0, ended_ms - began_ms),
        )

    async def _compact(self) -> "Outcome | None":
        """None if there is nothing new since the last compaction, and nothing to drop."""
        topic, before = self._topic, self._record
        lost, retention_s = self._lost, topic.policies[COMPACTION_DELETE_RETENTION]
        horizon = self._decided() if before is None else max(self._decided(), before.horizon)
        generation = 1 if before is None else before.generation + 1
        tombstones = tombstones_of(topic.ledger.properties, generation - 1)
        drop_to = tombstones.may_drop_to(topic.clock.now_ms(), retention_s, self._passed())
        some_to_drop = tombstones.count > 0 and drop_to > tombstones.dropped_to
        first = topic.ledger.first_position if before is None or lost else before.horizon.after
        self._keep_all_from = first = max(first, self._given_up_before)
        if not (lost or some_to_drop or topic.ledger.has_entries(first, horizon)):
            return None
        await self._delete_others()
        if lost:
            log.error(
                "%s: the compacted log is lost; starting over with what the topic still has", self
            )
        old = None if lost else await self.log()
        new = await self._open(generation)
        from pybroker.broker.compaction.compactor import Span, compact  # few topics need it

        span = Span(topic.ledger, topic.hidden, old, first, horizon)
        try:
            retain_null_key = topic.config.topic_compaction_retain_null_key
            outcome = await compact(span, new, retain_null_key, drop_to)
        except BaseException:  # also if the topic is unloaded meanwhile
            await topic.factory.delete(new.name)
            raise
        size = CompactedLog(new).size
        record = Record(generation, horizon, outcome.last, outcome.last_index, *size)
        now_ms = topic.clock.now_ms()
        left = tombstones.after(generation, horizon, drop_to, now_ms, retention_s)
        left = replace(left, count=outcome.tombstones)
        try:
            await topic.ledger.update_properties(
                {PROPERTY: record.encode(), TOMBSTONES: left.encode()}
            )
        except BaseException:  # the next load of the topic decides which log counts
            await new.close()
            raise
        self._record = record
        await self._delete_others()
        return outcome

    def _passed(self) -> Iterator[Position]:
        """How far each durable subscription has acknowledged everything."""
        for subscription in self._topic.each_subscription():
            if subscription.durable:
                yield subscription.cursor.reached

    def _decided(self) -> Position:
        """Nothing after it is decided: an open transaction begins there, or the log ends."""
        return self._topic.max_read_position

    async def _delete_others(self) -> None:
        """Delete inactive logs: the previous one, or the log of an incomplete compaction."""
        topic, record = self._topic, self._record
        counts = None if record is None else self._name(record.generation)
        for name in topic.factory.names(compacted_logs(topic.name)):
            if name != counts:
                await topic.factory.delete(name)

    async def close(self) -> None:
        """Stop, because the topic's ledger is about to be closed."""
        if self._visit is not None:
            self._visit.cancel()
        if self._record is not None:
            found = self._topic.factory.opened(self._name(self._record.generation))
            if found is not None:
                await found.close()


def generation_that_counts(properties: Mapping[str, str]) -> int | None:
    """The active generation, from the properties of a topic's managed ledger; None if there is
    none.
    """
    text = properties.get(PROPERTY)
    return None if text is None else Record.decode(text).generation
