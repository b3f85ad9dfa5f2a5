import sys
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
from exactly_once_driver import (
    CONTROL,
    CURSOR,
    NEXT,
    REPLAY,
    TOPIC,
    WORK,
    Driver,
    broker_at,
    work_of,
)
from pyspark.errors import PySparkException
from spark_fakes import FakeCheckpoint, FakeClient, FakeEntry, Fault

from pybroker.base.errors import AuthorizationError, NotAllowed, ServiceNotReady
from pybroker.base.names import TxnId
from pybroker.client.errors import ConnectError, TransactionOutcomeUnknown
from pybroker.spark.decision import BatchRefused, CursorsDisagree
from pybroker.spark.marker import Marker
from pybroker.spark.offsets import Position
from pybroker.spark.replay import InputLost
from pybroker.spark.session import Session
from pybroker.spark.transactional import Fenced, Step
from pybroker.spark.writing.attempt import Written


def test_the_end_is_acknowledged_before_any_output_is_made():
    driver = Driver()
    driver.process()
    assert driver.broker.events == [
        *("connect", f"publish {CONTROL}", "let go", "begin", "acknowledge", "acknowledge"),
        *("write", f"send {CONTROL}", "commit"),
    ]
    assert driver.steps == [Step.ACKNOWLEDGED, Step.PUBLISHED, Step.MARKED, Step.COMMITTED]


def test_cursor_and_marker_move_together():
    driver = Driver()
    driver.process()
    assert driver.broker.cursors[CURSOR] == 9
    kept = {CURSOR: Position(1, 4)}
    assert driver.markers == [Marker("query", 3, TxnId(0, 0), WORK.progress, "digest", kept)]


def test_a_committed_batch_is_skipped_but_evaluated_for_its_state():
    first = Driver()
    first.process()
    second = Driver(first.broker, first.checkpoint)
    second.process()
    assert second.steps == [Step.SKIPPED]
    second.batch.write.format.assert_called_once_with("noop")
    assert len(second.markers) == 1


def test_a_cursor_past_the_batch_does_not_show_that_this_query_published_it():
    driver = Driver(broker_at(9))
    with pytest.raises(BatchRefused, match="has not been committed by this query"):
        driver.process()
    assert driver.broker.transactions == {}


def test_a_batch_within_which_the_cursor_stands_fails():
    with pytest.raises(CursorsDisagree):
        Driver(broker_at(6)).process()


def test_a_subscription_that_was_reset_is_set_to_the_batchs_beginning_and_the_query_goes_on():
    driver = Driver()
    driver.process(WORK)
    driver.broker.cursors[CURSOR] = 0
    with pytest.raises(CursorsDisagree, match="Set it to the batch's beginning"):
        Driver(driver.broker, driver.checkpoint).process(NEXT)
    driver.broker.cursors[CURSOR] = 9
    Driver(driver.broker, driver.checkpoint).process(NEXT)
    assert [marker.batch_id for marker in driver.markers] == [3, 4]


def test_a_subscription_that_was_reset_is_set_to_the_end_of_what_was_committed():
    driver = Driver()
    driver.process(WORK)
    driver.broker.cursors[CURSOR] = 0
    with pytest.raises(CursorsDisagree, match="Set it to the end of the batch"):
        Driver(driver.broker, driver.checkpoint).process(WORK)
    driver.broker.cursors[CURSOR] = 9
    Driver(driver.broker, driver.checkpoint).process(WORK)
    Driver(driver.broker, driver.checkpoint).process(NEXT)
    assert [marker.batch_id for marker in driver.markers] == [3, 4]


def test_a_cursor_that_passed_markers_only_has_not_begun_the_batch():
    broker = broker_at(6)
    broker.topic(TOPIC).entries[5:7] = [FakeEntry(b"", is_message=False)] * 2
    driver = Driver(broker)
    driver.process()
    assert len(driver.markers) == 1


@pytest.mark.parametrize("error", [ConnectError("lost"), TransactionOutcomeUnknown(TxnId(0, 0))])
def test_a_commit_that_happened_unheard_is_found_in_the_cursors(error):
    driver = Driver()
    driver.broker.faults["commit"] = Fault(error, after=True)
    driver.process()
    assert len(driver.markers) == 1
    assert driver.broker.events.count("write") == 1
    assert driver.steps[-1] is Step.SKIPPED


def test_a_commit_that_did_not_happen_runs_again_in_a_new_transaction():
    driver = Driver()
    driver.broker.faults["commit"] = Fault(ConnectError("lost"))
    driver.process()
    assert [marker.txn_id for marker in driver.markers] == [TxnId(0, 1)]
    assert driver.broker.transactions[TxnId(0, 0)].state == "aborted"


@pytest.mark.parametrize("operation", ["begin", "acknowledge", f"send {CONTROL}"])
@pytest.mark.parametrize("after", [False, True])
def test_a_lost_connection_at_any_step_leaves_one_marker(operation, after):
    driver = Driver()
    driver.broker.faults[operation] = Fault(ConnectError("lost"), after)
    driver.process()
    assert len(driver.markers) == 1
    assert driver.broker.events.count("connect") == 2


def test_a_driver_that_takes_over_ends_its_predecessors_transaction():
    first = Driver()
    first.broker.faults["commit"] = Fault(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        first.process()
    second = Driver(first.broker, first.checkpoint)
    second.process()
    assert first.broker.transactions[TxnId(0, 0)].state == "aborted"
    assert [marker.txn_id for marker in second.markers] == [TxnId(0, 1)]


def test_a_second_driver_without_the_checkpoint_is_fenced_and_writes_nothing():
    first = Driver()
    first.broker.faults[f"send {CONTROL}"] = Fault(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        first.process()
    second = Driver(first.broker, FakeCheckpoint(), patience_s=2.0)
    with pytest.raises(Fenced, match="another transaction holds"):
        second.process()
    assert second.markers == []
    assert first.broker.transactions[TxnId(0, 0)].state == "open"


def test_a_refusal_that_waiting_does_not_heal_fails_at_once_and_aborts():
    driver = Driver()
    driver.broker.faults["acknowledge"] = Fault(AuthorizationError("not allowed"))
    with pytest.raises(AuthorizationError):
        driver.process()
    assert driver.now_s == 0
    assert driver.broker.transactions[TxnId(0, 0)].state == "aborted"


def test_an_error_of_the_users_function_aborts_the_transaction():
    driver = Driver()
    driver.broker.faults["write"] = Fault(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        driver.process()
    assert driver.broker.transactions[TxnId(0, 0)].state == "aborted"


def test_a_driver_that_stood_still_learns_what_another_committed_meanwhile():
    first = Driver()
    first.process()
    second = Driver(first.broker, first.checkpoint)
    second.process(NEXT)
    first.process(NEXT)
    assert first.steps[-1] is Step.SKIPPED
    assert len(first.markers) == 2


def test_in_the_steady_state_nothing_is_read_from_the_control_topic(monkeypatch):
    driver = Driver()
    driver.process()
    monkeypatch.delattr(FakeClient, "create_reader")
    driver.process(NEXT)
    assert [marker.batch_id for marker in driver.markers] == [3, 4]


def test_markers_of_an_earlier_version_count():
    broker = broker_at(9)
    old = Marker("query", 3, TxnId(0, 0), WORK.progress).to_bytes()
    broker.store(CONTROL, b"no marker", b'{"query_id": "query"}', old)
    driver = Driver(broker)
    driver.process()
    assert driver.steps == [Step.SKIPPED]
    driver.process(NEXT)
    assert driver.steps[-1] is Step.COMMITTED


def test_what_a_replay_needs_outlives_the_sources_cursor():
    driver = Driver()
    driver.process()
    driver.process(NEXT)
    driver.broker.trim()
    assert driver.broker.topic(TOPIC).first <= 10
    assert driver.broker.cursors[REPLAY] == 4
    driver.process(work_of(5, 12, 15))
    assert driver.broker.cursors[REPLAY] == 9


def test_a_new_replay_subscription_does_not_keep_what_the_query_never_read():
    driver = Driver()
    driver.process()
    assert driver.broker.cursors[REPLAY] == 4


def test_a_cursor_that_the_broker_moved_over_markers_has_lost_nothing():
    broker = broker_at(4)
    broker.topic(TOPIC).entries[5:8] = [FakeEntry(b"", is_message=False)] * 3
    first = Driver(broker)
    first.process()
    broker.cursors[REPLAY] = 7
    second = Driver(broker)
    second.process()
    assert second.steps == [Step.SKIPPED]


def test_a_replay_whose_input_is_gone_is_refused():
    driver = Driver()
    driver.process()
    driver.broker.cursors[REPLAY] = 7  # an expiry
    driver.broker.trim()
    with pytest.raises(InputLost, match="have been deleted"):
        Driver(driver.broker).process()


@pytest.mark.parametrize("returned", [None, 3])
def test_a_write_that_returns_no_outputs_is_an_error_and_commits_nothing(returned):
    driver = Driver()
    driver.sink.write = lambda batch, batch_id: returned
    with pytest.raises(NotAllowed, match="Check that it has a return"):
        driver.process()
    assert driver.broker.cursors[CURSOR] == 4


def test_a_batch_that_write_ignores_is_evaluated_all_the_same(monkeypatch):
    driver = Driver()
    driver.batch.sparkSession._jsparkSession = None
    driver.process()
    driver.batch.write.format.assert_called_once_with("noop")


@pytest.mark.parametrize(
    ("mode", "most_bytes"), [("auto", 1024 * 1024), ("driver", None), ("executor", 64 * 1024)]
)
def test_what_a_task_leaves_to_the_driver(monkeypatch, mode, most_bytes):
    jobs = []

    def publish(outputs, partitions, job, turn, batching_type):
        jobs.append(job)
        return []

    monkeypatch.setattr(sys.modules["pybroker.spark.transactional"], "publish_outputs", publish)
    driver = Driver()
    driver.sink.options = replace(driver.sink.options, mode=mode)
    driver.sink.write = lambda batch, batch_id: {TOPIC: MagicMock()}
    driver.process()
    assert [job.max_driver_bytes for job in jobs] == [most_bytes]


def test_by_default_a_batch_of_any_size_fits_the_driver():
    assert Driver().sink.options.mode == "auto"


def test_what_killed_tasks_left_open_is_aborted_when_their_job_has_failed(monkeypatch):
    """No later driver may come to abort it, and it hides later messages from readers."""
    left = []

    def publish(outputs, partitions, job, turn, batching_type):
        left.append(task_publishes(job))
        raise PySparkException("a task was killed")

    monkeypatch.setattr(sys.modules["pybroker.spark.transactional"], "publish_outputs", publish)
    driver = Driver()
    driver.sink.write = lambda batch, batch_id: {TOPIC: MagicMock()}
    with pytest.raises(PySparkException):
        driver.process()
    assert [txn.state for txn in left] == ["aborted"] * 3


def test_a_driver_that_cannot_ask_for_an_outcome_at_once_asks_again():
    """The commit's answer was lost, and then the coordinator was not available."""
    driver = Driver()
    driver.broker.faults["commit"] = Fault(TransactionOutcomeUnknown(TxnId(0, 0)))
    driver.broker.faults["abort"] = Fault(ServiceNotReady("not yet"))
    driver.process()
    assert len(driver.markers) == 1


def task_publishes(job):
    """Publish in the task's own transaction, which stays open; returns the transaction."""
    session = Session(job.connect())
    txn = session.client.new_transaction(1000, beside=job.txn_id)
    job.notes.note(session, job.txn_id, 1000, txn.txn_id, job.txn_id)
    session.publish(TOPIC, b"row", txn)
    return txn


def test_a_driver_that_waits_for_the_lock_leaves_the_tasks_of_its_holder_alone(monkeypatch):
    """Otherwise neither could ever finish."""
    first = Driver()
    rival = Driver(first.broker, patience_s=2.0)
    tasks = []

    def publish(outputs, partitions, job, turn, batching_type):
        tasks.append(task_publishes(job))
        with pytest.raises(Fenced):
            rival.process()
        return [Written(job, (), tasks[-1].txn_id, 1)]

    monkeypatch.setattr(sys.modules["pybroker.spark.transactional"], "publish_outputs", publish)
    first.sink.write = lambda batch, batch_id: {TOPIC: MagicMock()}
    first.process()
    assert [txn.state for txn in tasks] == ["committed"]


@pytest.mark.parametrize("mode", ["auto", "driver"])
def test_what_a_dead_drivers_tasks_left_open_is_aborted_though_ours_publish_nothing(
    monkeypatch, mode
):
    """In another run a task may have fewer rows, or the mode may differ."""

    class Death(BaseException):
        pass

    left = []

    def publish(outputs, partitions, job, turn, batching_type):
        left.append(task_publishes(job))
        raise Death

    module = sys.modules["pybroker.spark.transactional"]
    monkeypatch.setattr(module, "publish_outputs", publish)
    first = Driver()
    first.sink.write = lambda batch, batch_id: {TOPIC: MagicMock()}
    with pytest.raises(Death):
        first.process()
    monkeypatch.setattr(module, "publish_outputs", lambda *_: [])
    second = Driver(first.broker, first.checkpoint)
    second.sink.options = replace(second.sink.options, mode=mode)
    second.sink.write = first.sink.write
    second.process()
    assert [txn.state for txn in left] == ["aborted"]


def test_the_end_of_a_run_that_is_heard_late_does_not_disturb_the_next_one(monkeypatch):
    endings = []
    module = sys.modules["pybroker.spark.transactional"]
    monkeypatch.setattr(module, "when_terminated", lambda *_: endings.append(_[-1]))
    driver, spark = Driver(), MagicMock()
    for run, work in (("first", WORK), ("second", NEXT)):
        spark.sparkContext.getLocalProperty.return_value = run
        driver.sink._close_with_the_run(spark, "query")
        driver.process(work)
        assert driver.broker.events.count("close") == len(endings) - 1  # the previous run's client
    endings[0]()
    assert driver.broker.events.count("close") == 1
    endings[1]()
    assert driver.broker.events.count("close") == 2
