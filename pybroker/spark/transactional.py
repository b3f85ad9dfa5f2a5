"""Exactly-once micro-batches: a batch's input and its output in one transaction of the driver.

The fence is the source subscription's cursor. A transaction that acknowledges the batch's end holds
the cursor until it ends. So of any number of drivers, active or forgotten, only one gets through:

1. Find the batch's spans in Spark's offset log, and end the transaction that an earlier driver of
   this checkpoint may have left open.
2. Read the cursors and this query's newest marker: pybroker.spark.decision says whether the batch
   runs, is skipped because it was committed, or is refused.
3. Begin a transaction, acknowledge the ends and the newest marker (which takes the locks before any
   output), publish the output and a marker, commit.
4. If anything at the broker failed or its outcome is unknown, start again at 1 on a new connection.

A batch that reads nothing from Pulsar is fenced only by the chain of the query's markers
(pybroker.spark.chain). A skipped batch is still evaluated, for the query's state, over input that
is kept for it (pybroker.spark.replay).
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pybroker.base.errors import (
    MetadataError,
    NotAllowed,
    ProducerFenced,
    PulsarError,
    TransactionConflict,
)
from pybroker.base.names import TxnId
from pybroker.client import (
    AlreadyClosed,
    BatchingType,
    ConnectError,
    Timeout,
    Transaction,
    TransactionAborted,
    TransactionOutcomeUnknown,
    tracing,
)
from pybroker.spark.chain import Chain
from pybroker.spark.checkpoint import Checkpoint, LeftOpen
from pybroker.spark.decision import BatchRefused, Decision, decide
from pybroker.spark.ending import when_terminated
from pybroker.spark.endpoint import connecting
from pybroker.spark.evaluation import evaluate, evaluate_rest
from pybroker.spark.marker import Marker
from pybroker.spark.publish import publish_outputs
from pybroker.spark.replay import keep_input, require_input
from pybroker.spark.session import MAY_HEAL, Connect, Session, connect
from pybroker.spark.work import Work
from pybroker.spark.writing.attempt import DRIVER_BYTES_OF_A_TASK, Job
from pybroker.spark.writing.committing import publish_entries, to_commit
from pybroker.spark.writing.notes import end

if TYPE_CHECKING:
    from pybroker.spark.target import Database, Target

log = logging.getLogger("pybroker.spark")

WriteBatch = Callable[[DataFrame, int], Mapping[str, DataFrame]]
BatchFunction = Callable[[DataFrame, int], None]

# After these the broker may be unavailable: the next attempt or driver ends the transaction.
_UNANSWERED: Final = (AlreadyClosed, ConnectError, Timeout, TransactionOutcomeUnknown)
_JOB_FAILED: Final = (PySparkException, Py4JError)
# How many bytes a task leaves to the driver at most; with more it publishes itself. None: no limit.
_DRIVER_BYTES: Final[Mapping[str, int | None]] = {
    "auto": 1024 * 1024,
    "driver": None,
    "executor": DRIVER_BYTES_OF_A_TASK,
}
_EXECUTOR_ATTEMPTS: Final = 3
_PAUSE_S: Final = 0.5


class Fenced(ProducerFenced):
    """Another transaction held the source's cursor for longer than this driver may wait."""


class Step(StrEnum):
    """Steps of a transaction that are reported to an observer (`on_step`)."""

    ACKNOWLEDGED = "acknowledged"
    PUBLISHED = "published"
    MARKED = "marked"
    COMMITTED = "committed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Options:
    service_url: str
    checkpoint: str
    control_topic: str
    mode: str = "auto"
    transaction_timeout_ms: int = 600_000
    patience_s: float = 660.0
    batching_type: BatchingType = BatchingType.Default
    on_step: Callable[[Step, Work], None] = lambda step, work: None
    database: "Database | None" = None
    connect: Connect = connect
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


def exactly_once(
    write: WriteBatch,
    *,
    service_url: str,
    checkpoint: str,
    control_topic: str,
    mode: str = "auto",
    transaction_timeout_ms: int = 600_000,
    patience_s: float | None = None,
    on_step: Callable[[Step, Work], None] = lambda step, work: None,
    client_options: Mapping[str, str] | None = None,
    batching_type: BatchingType = BatchingType.Default,
    database: "Database | None" = None,
) -> BatchFunction:
    """Returns a function for `foreachBatch` that publishes `write(batch, batch_id)` exactly once.

    `write` maps topics to DataFrames (columns: see pybroker.spark.publish); {} publishes nothing.
    It may be called again for the same batch, so it must not have side effects. `checkpoint` is the
    query's checkpointLocation. Queries may share a control topic: each keeps a subscription
    `query-<its id>` there; delete it when you retire the query.

    A task with more than 1 MiB publishes its messages itself; those of other tasks go through the
    driver, so a batch of any size fits. This keeps the order within each partition of a DataFrame.
    With the mode "driver" everything goes through the driver, in the order of the whole DataFrame,
    and must fit its memory; with "executor" as little as possible does. With Apache Pulsar
    everything goes through the driver.

    With BatchingType.KeyBased the messages of an entry share their key, for Key_Shared consumers.

    With a `database` its rows commit together with the messages: see pybroker.spark.Database. Then
    all messages go through the driver.

    `client_options` are the source's options that begin with pulsar.client., for credentials and
    TLS.

    The transaction's timeout must be far above the duration of a batch. For `patience_s` (by
    default a little more than that timeout) a batch retries while the broker is unavailable or
    another transaction holds the cursor; then the query fails. Raises in the query: Fenced,
    BatchRefused (see pybroker.spark.decision), InputLost, MetadataError, NotAllowed, and refusals
    of the broker.
    """
    if mode not in _DRIVER_BYTES:
        raise ValueError(
            f"mode is {mode!r}; it must be one of {', '.join(map(repr, _DRIVER_BYTES))}"
        )
    if database is not None and mode == "executor":
        raise ValueError("with a database everything goes through the driver: leave out mode")
    patient_s = transaction_timeout_ms / 1000 + 60 if patience_s is None else patience_s
    options = Options(
        service_url,
        checkpoint.rstrip("/"),
        control_topic,
        mode if database is None else "driver",
        transaction_timeout_ms,
        patient_s,
        batching_type,
        on_step,
        database,
        connecting(service_url, client_options),
    )
    return ExactlyOnce(write, options)


@dataclass(slots=True)
class ExactlyOnce:
    """Spark calls it once per micro-batch, one after another."""

    write: WriteBatch
    options: Options
    _session: Session | None = None
    _open_transaction: LeftOpen | None = None
    _recovers: bool = True  # decide what earlier drivers left prepared with the database
    _stored: LeftOpen | None = None  # the last one that the database was found to have committed
    _predecessor_settled: bool = False
    # Whether tasks of earlier attempts or of the previous driver may have left transactions open.
    _left_behind: bool = True
    _chain: Chain | None = None
    _run_id: str | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        _require_a_jvm(batch.sparkSession)
        checkpoint = Checkpoint(batch.sparkSession, self.options.checkpoint)
        query_id = _query_id(batch.sparkSession)
        self._close_with_the_run(batch.sparkSession, query_id)
        checkpoint.require(query_id)
        work = checkpoint.work(query_id, batch_id)
        batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with tracing.around("spark micro-batch", query_id=query_id, batch_id=batch_id):
                self.process(batch, work, checkpoint)
        finally:
            batch.unpersist()

    def close(self) -> None:
        """Call when the query has ended. Another driver may continue it, and this one again
        later.
        """
        session, self._session = self._session, None
        self._chain = self._stored = None
        self._predecessor_settled = False
        self._left_behind = self._recovers = True
        if session is not None:
            session.close()

    def _close_with_the_run(self, spark: SparkSession, query_id: str) -> None:
        run_id = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
        if run_id is not None and run_id != self._run_id:
            # The session is the previous run's; Spark may report the end of that run later.
            self.close()
            self._run_id = run_id
            when_terminated(spark, query_id, run_id, partial(self._run_has_ended, run_id))

    def _run_has_ended(self, run_id: str) -> None:
        if run_id == self._run_id:
            self.close()

    def process(self, batch: DataFrame, work: Work, checkpoint: Checkpoint) -> None:
        """Returns when the batch's transaction is known to be committed."""
        give_up_at = self.options.clock() + self.options.patience_s
        failed_jobs = 0
        while True:
            try:
                self._attempt(batch, work, checkpoint)
                return
            except Exception as error:
                self._start_over(work, error)
                failed_jobs += isinstance(error, _JOB_FAILED)
                patient = self.options.clock() < give_up_at
                if not patient and isinstance(error, TransactionConflict):
                    raise _fenced(work, error) from error
                if not patient or not self._worth_another_try(error, failed_jobs):
                    raise
            self.options.pause(_PAUSE_S)

    def _worth_another_try(self, error: BaseException | None, failed_jobs: int) -> bool:
        """An aborted transaction is retried if the cause of its failure may be retried."""
        if isinstance(error, TransactionAborted):
            return self._worth_another_try(error.__cause__, failed_jobs)
        if self.options.database is not None and _is_away(error):
            return True
        if isinstance(error, _JOB_FAILED):
            return self._by_tasks and failed_jobs < _EXECUTOR_ATTEMPTS
        return isinstance(error, MAY_HEAL)

    def _attempt(self, batch: DataFrame, work: Work, checkpoint: Checkpoint) -> None:
        if self._session is None:
            self._session = Session(self.options.connect(self.options.service_url))
        session = self._session
        with self._target(session) as target:
            self._attempt_on(session, target, batch, work, checkpoint)

    @contextlib.contextmanager
    def _target(self, session: Session) -> "Iterator[Target | None]":
        """The database, if there is one."""
        if self.options.database is None:
            yield None
            return
        from pybroker.spark.target import opened  # loads pybroker.client.database

        with opened(self.options.database, session.client, self._recovers) as target:
            self._recovers = False
            yield target

    def _attempt_on(
        self,
        session: Session,
        target: "Target | None",
        batch: DataFrame,
        work: Work,
        checkpoint: Checkpoint,
    ) -> None:
        self._settle(session, target, checkpoint)
        chain = self._chain_of(work)
        if self._decide(session, chain, work) is Decision.SKIP:
            require_input(session, work, chain.newest(session))
            evaluate(batch)
            self._clear(session, work)
            self._tell(Step.SKIPPED, work)
            return
        if target is not None:
            target.require_rows_once(work, self._stored)
        kept = keep_input(session, work.progress, chain.newest(session).kept)
        txn = session.client.new_transaction(timeout_ms=self.options.transaction_timeout_ms)
        self._open_transaction = (
            LeftOpen(txn.txn_id)
            if target is None
            else target.to_leave_open(txn.txn_id, work.batch_id)
        )
        checkpoint.record_transaction(self._open_transaction)
        marker = Marker.of(work, txn.txn_id, kept)
        self._run(session, target, batch, work, marker, txn)
        self._open_transaction = None

    def _decide(self, session: Session, chain: Chain, work: Work) -> Decision:
        cursors = session.cursors(work.progress)
        with contextlib.suppress(BatchRefused):
            return decide(work, cursors, chain.newest(session))
        chain.forget()  # Another driver may have committed batches in the meantime.
        return decide(work, cursors, chain.newest(session))

    def _chain_of(self, work: Work) -> Chain:
        """Makes a new chain if the same function is later used for another query."""
        if self._chain is None or not self._chain.is_of(work.query_id):
            self._chain = Chain(self.options.control_topic, work.query_id)
        return self._chain

    def _run(
        self,
        session: Session,
        target: "Target | None",
        batch: DataFrame,
        work: Work,
        marker: Marker,
        txn: Transaction,
    ) -> None:
        chain = self._chain_of(work)
        for name, span in work.progress.items():
            session.acknowledge(name, span.to, txn)
        chain.acknowledge(session, txn)
        self._tell(Step.ACKNOWLEDGED, work)
        attempts = self._publish(session, _outputs(self.write(batch, work.batch_id)), txn, work)
        if target is not None:
            target.store(batch, work.batch_id)
        evaluate_rest(batch)
        self._tell(Step.PUBLISHED, work)
        link = chain.publish(session, marker, txn)
        self._tell(Step.MARKED, work)
        if target is None:
            txn.commit(together_with=attempts)
        else:
            assert self._open_transaction is not None and not attempts
            target.commit(txn, self._open_transaction.row_name)
        if attempts or self._left_behind:  # Otherwise no task published, in any attempt.
            self._clear(session, work)
        chain.committed(link)
        self._tell(Step.COMMITTED, work)

    def _publish(
        self, session: Session, outputs: Mapping[str, DataFrame], txn: Transaction, work: Work
    ) -> list[TxnId]:
        """Publishes the outputs. Returns the tasks' transactions, which must commit with `txn`."""
        if not outputs:
            return []
        partitions = {topic: session.partitions(topic) for topic in outputs}
        job = self._job(session, work, txn)
        batching_type = self.options.batching_type
        written = publish_outputs(outputs, partitions, job, work.batch_id, batching_type)
        publish_entries(session, written, txn)
        return to_commit(written)

    def _clear(self, session: Session, work: Work) -> None:
        """Called when a batch is over: aborts what its tasks left open."""
        self._left_behind = not self._sweep(session, work)

    def _sweep(self, session: Session, work: Work, job: TxnId | None = None) -> bool:
        """Aborts transactions that tasks left open; if it cannot, they time out. After a failed
        `job` only that job's: the current lock holder may be working on the same batch."""
        with contextlib.suppress(PulsarError):
            chain = self._chain_of(work)
            chain.newest(session)
            chain.sweep(session, work.batch_id, job)
            return True
        return False

    @property
    def _by_tasks(self) -> bool:
        """Whether tasks may publish themselves."""
        return _DRIVER_BYTES[self.options.mode] is not None

    def _job(self, session: Session, work: Work, txn: Transaction) -> Job:
        by_tasks = self._by_tasks and session.client.commits_together()
        return Job(
            partial(self.options.connect, self.options.service_url),
            txn.txn_id,
            self._chain_of(work).notes(session, work.batch_id),
            self.options.transaction_timeout_ms,
            _DRIVER_BYTES[self.options.mode] if by_tasks else None,
        )

    def _settle(self, session: Session, target: "Target | None", checkpoint: Checkpoint) -> None:
        """Ends the transaction left open by this driver's last attempt, or by the previous driver.

        Owning the checkpoint means owning its transaction: Spark lets one query at a time use it.
        """
        left_open = self._open_transaction
        if left_open is None and not self._predecessor_settled:
            left_open = checkpoint.open_transaction()
        if left_open is not None and left_open.row_name:
            from pybroker.spark.target import settle  # loads pybroker.client.database

            if settle(session.client, target, left_open):
                self._stored = left_open
        elif left_open is not None:
            end(session, left_open.txn_id)
        self._open_transaction = None
        self._predecessor_settled = True

    def _start_over(self, work: Work, error: Exception) -> None:
        """Drops the session, and ends its transactions if the broker can be reached: the job's
        first, so that a task that is still running finds that it has ended."""
        log.warning("Batch %d of query %s: %s", work.batch_id, work.query_id, error)
        session, self._session = self._session, None
        self._left_behind = self._recovers = True
        if session is not None:
            if self._open_transaction is not None and not isinstance(error, _UNANSWERED):
                with contextlib.suppress(PulsarError):
                    end(session, self._open_transaction.txn_id)
                    self._sweep(session, work, self._open_transaction.txn_id)
            session.close()
        if self._chain is not None:
            self._chain.forget()

    def _tell(self, step: Step, work: Work) -> None:
        self.options.on_step(step, work)


def _is_away(error: BaseException | None) -> bool:
    from pybroker.spark.target import is_away

    return error is not None and is_away(error)


def _outputs(returned: object) -> Mapping[str, DataFrame]:
    if isinstance(returned, Mapping):
        return returned
    raise NotAllowed(
        f"write returned {type(returned).__name__}; it must return a dictionary of topics to "
        "DataFrames. Check that it has a return; to publish nothing, return {}"
    )


def _require_a_jvm(spark: SparkSession) -> None:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise NotAllowed(
            "exactly_once reads the query's checkpoint through the driver's JVM, which Python does "
            "not have under Spark Connect. Run it in a session that is not remote, or write with "
            'writeStream.format("pulsar"), which also writes each row once'
        )


def _query_id(spark: SparkSession) -> str:
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        raise MetadataError("exactly_once works only inside foreachBatch of a streaming query")
    return query_id


def _fenced(work: Work, error: TransactionConflict) -> Fenced:
    return Fenced(
        f"Batch {work.batch_id} of query {work.query_id} wrote nothing: another transaction holds "
        f"the source's cursor or the query's own ({error}). Either another driver uses this "
        "subscription or checkpoint: stop one of them. Or a driver died and its checkpoint is "
        "lost: wait until its transaction times out"
    )
