"""The end of a micro-batch of the sink: commits, aborts, refusals."""

import logging

import pytest
from spark_fakes import FakeBroker, FakeClient, Fault

from pybroker.base.names import TxnId
from pybroker.client import EncodedBatch
from pybroker.client.errors import ConnectError, TransactionOutcomeUnknown
from pybroker.spark.chain import Chain
from pybroker.spark.decision import BatchRefused
from pybroker.spark.work import Work
from pybroker.spark.writing.attempt import Job, write
from pybroker.spark.writing.batch_end import AttemptsEnded, BatchEnd, Step
from pybroker.spark.writing.entries import Destined
from pybroker.spark.writing.notes import NoteBook

OUT, CONTROL = "persistent://public/default/out", "persistent://public/default/control"
LOST = ConnectError("lost"), TransactionOutcomeUnknown(TxnId(0, 0))


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("pybroker.spark").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("pybroker.spark").setLevel(logging.NOTSET)


class Sink:
    """The sink of one query, over any number of restarts."""

    def __init__(self):
        self.broker = FakeBroker()
        self.steps = []
        self.now_s = 0.0
        self.control, self.former = CONTROL, ""
        self.on_step = lambda step, work: self.steps.append(step)

    def job(self, batch_id):
        txn = FakeClient(self.broker).new_transaction(1000)
        book = NoteBook(self.control, "query", batch_id, former=self.former)
        return Job(lambda: FakeClient(self.broker), txn.txn_id, book, 1000, 1)

    def attempt(self, batch_id, rows):
        return write(self.job(batch_id), (entry(row) for row in rows))

    def end(self, batch_id, *written):
        work = Work("query", batch_id, {})
        chain = Chain(self.control, "query", self.former)
        job = written[0].job
        return BatchEnd(job, chain, work, written, self.on_step, self._pause, lambda: self.now_s)

    def batch(self, batch_id, rows):
        self.end(batch_id, self.attempt(batch_id, rows)).commit()

    def _pause(self, seconds):
        self.now_s += seconds

    def seen(self):
        return b"".join(sorted(self.broker.published(OUT))).decode()

    def state(self, written):
        return self.broker.transactions[written.txn_id].state


def entry(row):
    return Destined(0, OUT, EncodedBatch(row.encode(), 1, 1))


@pytest.fixture
def sink():
    return Sink()


def test_batches_follow_each_other(sink):
    sink.batch(0, "ab")
    sink.batch(1, "c")
    assert sink.seen() == "abc"
    assert Step.COMMITTED in sink.steps


def test_a_replayed_batch_is_not_written_again(sink):
    sink.batch(0, "ab")
    again = sink.attempt(0, "ab")
    sink.end(0, again).commit()
    assert (sink.seen(), sink.state(again)) == ("ab", "aborted")


@pytest.mark.parametrize("batch_id", [0, 3])
def test_a_batch_out_of_order_is_refused(sink, batch_id):
    sink.batch(0, "ab")
    sink.batch(1, "c")
    with pytest.raises(BatchRefused):
        sink.batch(batch_id, "xy")
    assert sink.seen() == "abc"


def test_what_a_dead_driver_left_open_is_ended_by_the_first_batch(sink):
    """Its tasks noted their transactions before the chain was opened."""
    left = sink.attempt(0, "ab")
    sink.batch(0, "ab")
    assert (sink.seen(), sink.state(left)) == ("ab", "aborted")


def test_what_a_dead_driver_left_open_is_found_though_it_never_began_the_chain(sink):
    """Nothing else keeps the notes of its tasks, nor the topic."""
    left = sink.attempt(0, "ab")
    sink.broker.lose_what_nobody_keeps()
    sink.batch(0, "ab")
    assert (sink.seen(), sink.state(left)) == ("ab", "aborted")


def test_a_message_ttl_on_the_control_topic_stops_nobody(sink):
    sink.batch(0, "a")
    left = sink.attempt(1, "bc")
    sink.broker.expire(CONTROL, "query-query")
    sink.batch(1, "bc")
    assert (sink.seen(), sink.state(left)) == ("abc", "aborted")
    sink.broker.expire(CONTROL, "query-query")
    sink.batch(1, "bc")
    sink.batch(2, "d")
    assert sink.seen() == "abcd"


def test_markers_that_a_message_ttl_has_taken_for_good_are_missed(sink):
    sink.batch(0, "a")
    sink.broker.expire(CONTROL, "query-query")
    sink.broker.trim()
    with pytest.raises(BatchRefused, match="by a message TTL"):
        sink.batch(1, "b")
    assert sink.seen() == "a"


def test_a_query_of_an_earlier_version_goes_on_where_its_markers_are(sink):
    sink.batch(0, "a")
    left = sink.attempt(1, "bc")
    sink.control, sink.former = "persistent://public/default/__spark-query-query", CONTROL
    sink.batch(0, "a")
    sink.batch(1, "bc")
    assert (sink.seen(), sink.state(left)) == ("abc", "aborted")
    assert sink.control not in sink.broker.topics


def test_a_new_query_has_no_topic_of_the_earlier_name(sink):
    sink.control, sink.former = "persistent://public/default/__spark-query-query", CONTROL
    sink.batch(0, "a")
    assert CONTROL not in sink.broker.topics
    assert sink.control in sink.broker.topics


def test_a_zombie_that_began_when_its_batch_was_over_is_ended_by_the_next(sink):
    sink.batch(0, "ab")
    zombie = sink.attempt(0, "ab")
    sink.batch(1, "c")
    assert (sink.seen(), sink.state(zombie)) == ("abc", "aborted")


def test_an_outdated_driver_leaves_the_next_batchs_tasks_alone(sink):
    sink.batch(0, "ab")
    following = sink.attempt(1, "cd")
    sink.end(0, sink.attempt(0, "ab")).commit()
    assert sink.state(following) == "open"
    sink.end(1, following).commit()
    assert sink.seen() == "abcd"


def test_a_dead_drivers_lock_is_broken_after_a_while(sink):
    sink.batch(0, "ab")
    dead = sink.end(1, sink.attempt(1, "c"))

    class Death(BaseException):
        pass

    def die(step, work):
        raise Death

    dead.on_step = die
    sink.broker.faults["abort"] = Fault(ConnectError("dead"))
    with pytest.raises(Death):
        dead.commit()
    sink.batch(1, "c")
    assert sink.seen() == "abc"
    assert 4 < sink.now_s < 20


def test_a_driver_whose_tasks_were_ended_by_another_is_fenced(sink):
    mine = sink.attempt(0, "ab")
    other = sink.attempt(0, "ab")
    sink.broker.transactions[mine.txn_id].state = "aborted"
    with pytest.raises(AttemptsEnded, match="stop one of the two"):
        sink.end(0, mine).commit()
    assert sink.seen() == ""
    assert sink.state(other) == "aborted"


@pytest.mark.parametrize("again", [0, 1])
def test_no_transaction_stays_open(sink, again):
    sink.batch(0, "ab")
    end = sink.end(again, sink.attempt(again, "ab"))
    sink.broker.faults[f"send {CONTROL}"] = Fault(LOST[0])
    end.commit()
    assert {txn.state for txn in sink.broker.transactions.values()} == {"committed", "aborted"}


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("error", LOST)
@pytest.mark.parametrize("operation", ["acknowledge", "commit", f"send {OUT}", f"send {CONTROL}"])
def test_a_lost_answer_neither_loses_nor_doubles(sink, operation, error, after):
    sink.batch(0, "a")
    written = [sink.attempt(1, "bc"), sink.attempt(1, "d")]
    end = sink.end(1, *written)
    sink.broker.faults[operation] = Fault(error, after)
    end.commit()
    assert sink.seen() == "abcd"
    sink.batch(2, "e")
    assert sink.seen() == "abcde"


def test_an_aborted_batch_leaves_nothing_open(sink):
    written = sink.attempt(0, "ab")
    sink.end(0, written).abort()
    assert (sink.seen(), sink.state(written)) == ("", "aborted")


def test_a_batch_that_fails_leaves_the_tasks_of_another_driver_alone(sink):
    """Both work on the batch; a task of one of them has failed for good."""
    sink.batch(0, "ab")
    mine, others = sink.attempt(1, "cd"), sink.attempt(1, "cd")
    sink.end(1, mine).abort()
    assert (sink.state(mine), sink.state(others)) == ("aborted", "open")
    sink.end(1, others).commit()
    assert sink.seen() == "abcd"


def test_a_batch_that_fails_ends_its_killed_attempts_too(sink):
    job = sink.job(0)
    accepted, killed = (write(job, [entry(row)]) for row in ("ab", "cd"))
    sink.end(0, accepted).abort()
    assert (sink.state(accepted), sink.state(killed)) == ("aborted", "aborted")
