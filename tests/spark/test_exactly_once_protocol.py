from unittest.mock import MagicMock

import pytest
from spark_fakes import FakeBroker, FakeCheckpoint, FakeClient, Fault

from pybroker.client import MessageId
from pybroker.client.errors import ConnectError, TransactionOutcomeUnknown
from pybroker.errors import AuthorizationError
from pybroker.names import TxnId
from pybroker.spark.decision import CursorsDisagree
from pybroker.spark.exactly_once import ExactlyOnce, Fenced, Options, Step, Work
from pybroker.spark.marker import Marker
from pybroker.spark.offsets import CursorName, Position, Span

TOPIC = "persistent://public/default/transfers"
CONTROL = "persistent://public/default/control"
CURSOR = CursorName(TOPIC, "ledger")
WORK = Work("query", 3, {CURSOR: Span(Position(1, 4), Position(1, 9))})


class Driver:
    """A driver process: its own sink, a broker and a checkpoint that may outlive it."""

    def __init__(self, broker=None, checkpoint=None, patience_s=10.0):
        self.broker = broker or FakeBroker(cursors={CURSOR: MessageId(-1, 1, 4)})
        self.checkpoint = checkpoint or FakeCheckpoint()
        self.batch = MagicMock()
        self.now_s = 0.0
        self.steps = []
        self.sink = ExactlyOnce(
            self._write,
            Options(
                "pulsar://fake",
                "/checkpoint",
                CONTROL,
                patience_s=patience_s,
                on_step=lambda step, work: self.steps.append(step),
                connect=lambda url: FakeClient(self.broker),
                pause=self._pause,
                clock=lambda: self.now_s,
            ),
        )

    def _write(self, batch, batch_id):
        self.broker.act("write", lambda: None)
        return {}

    def _pause(self, seconds):
        self.now_s += seconds

    def process(self, work=WORK):
        self.sink.process(self.batch, work, self.checkpoint)

    @property
    def markers(self):
        return [Marker.from_bytes(data) for data in self.broker.published(CONTROL)]


def test_the_end_is_acknowledged_before_any_output_is_made():
    driver = Driver()
    driver.process()
    assert driver.broker.events == [
        *("connect", "begin", "acknowledge", "write", f"send {CONTROL}", "commit")
    ]
    assert driver.steps == [Step.ACKNOWLEDGED, Step.PUBLISHED, Step.MARKED, Step.COMMITTED]


def test_cursor_and_marker_move_together():
    driver = Driver()
    driver.process()
    assert driver.broker.cursors[CURSOR] == MessageId(-1, 1, 9)
    assert driver.markers == [Marker("query", 3, TxnId(0, 0), WORK.progress)]


def test_a_committed_batch_is_skipped_but_evaluated_for_its_state():
    driver = Driver(FakeBroker(cursors={CURSOR: MessageId(-1, 1, 9)}))
    driver.process()
    assert driver.broker.events == ["connect"]
    assert driver.steps == [Step.SKIPPED]
    driver.batch.write.format.assert_called_once_with("noop")


def test_a_batch_within_which_the_cursor_stands_fails():
    broker = FakeBroker(
        cursors={CURSOR: MessageId(-1, 1, 6)}, readable=[MessageId(-1, 1, 5), MessageId(-1, 1, 9)]
    )
    with pytest.raises(CursorsDisagree):
        Driver(broker).process()


def test_a_cursor_that_passed_markers_only_has_not_begun_the_batch():
    broker = FakeBroker(
        cursors={CURSOR: MessageId(-1, 1, 6)}, readable=[MessageId(-1, 1, 7), MessageId(-1, 1, 9)]
    )
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
    assert first.broker.topics == []
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


def test_without_pulsar_input_the_newest_marker_is_the_fence():
    work = Work("query", 3, {})
    driver = Driver()
    driver.process(work)
    driver.process(work)
    assert [marker.batch_id for marker in driver.markers] == [3]
    driver.process(Work("query", 4, {}))
    assert [marker.batch_id for marker in driver.markers] == [3, 4]
