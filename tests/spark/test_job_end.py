"""The end of a df.write job, for all answers of the broker."""

from dataclasses import replace

import pytest
from spark_fakes import FakeBroker, FakeClient, Fault

from pybroker.base.errors import AuthorizationError, InvalidTxnStatus, NotAllowed
from pybroker.base.names import TxnId
from pybroker.client import EncodedBatch
from pybroker.client.errors import ConnectError, TransactionOutcomeUnknown
from pybroker.spark.writing import notes
from pybroker.spark.writing.attempt import Job, write
from pybroker.spark.writing.entries import Destined
from pybroker.spark.writing.job_end import JobEnd
from pybroker.spark.writing.notes import NoteBook

OUT, NOTES = "persistent://public/default/out", "persistent://public/default/__spark-jobs"
LOST = ConnectError("lost"), TransactionOutcomeUnknown(TxnId(0, 0))


class Writing:
    """A job with two tasks: one leaves its rows to the driver, the other publishes them itself."""

    def __init__(self, broker=None):
        self.broker = broker or FakeBroker()
        txn = FakeClient(self.broker).new_transaction(1000)
        book = NoteBook.of_job(NOTES, f"job-{txn.txn_id}")
        self.job = Job(lambda: FakeClient(self.broker), txn.txn_id, book, 1000, 2)
        self.written = [self.attempt("a"), self.attempt("bcde")]
        self.now_s = 0.0

    def attempt(self, rows):
        return write(self.job, (entry(row) for row in rows))

    def pause(self, seconds):
        self.now_s += seconds

    @property
    def end(self):
        return JobEnd(self.job, self.written, self.pause, lambda: self.now_s)

    def seen(self):
        return sorted(self.broker.published(OUT))

    def states(self):
        return {txn.state for txn in self.broker.transactions.values()}


def entry(row):
    return Destined(0, OUT, EncodedBatch(row.encode(), 1, 1))


@pytest.fixture
def writing():
    return Writing()


ALL = [b"a", b"b", b"c", b"d", b"e"]


def test_all_of_it_becomes_visible(writing):
    assert writing.seen() == []
    writing.end.commit()
    assert writing.seen() == ALL


def test_an_attempt_that_nobody_accepted_is_aborted(writing):
    writing.attempt("xyz")
    writing.end.commit()
    assert writing.seen() == ALL
    assert writing.states() == {"committed", "aborted"}


def test_more_tasks_than_commit_together_are_told_what_to_do(writing):
    publishing = writing.written[1]
    writing.written = [replace(publishing, txn_id=TxnId(0, n)) for n in range(1001)]
    with pytest.raises(NotAllowed, match=r"1001 tasks .*coalesce\(1000\)"):
        writing.end.commit()
    assert writing.seen() == []


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("error", LOST)
@pytest.mark.parametrize("operation", ["commit", f"send {OUT}"])
def test_a_lost_answer_neither_loses_nor_doubles(writing, operation, error, after):
    writing.broker.faults[operation] = Fault(error, after)
    writing.end.commit()
    assert writing.seen() == ALL


@pytest.mark.parametrize("aborted", [True, False])
def test_nothing_is_added_to_what_a_lost_connection_left_half_done(writing, aborted):
    """Not even before there is another transaction, while the broker is still unavailable."""
    lost = ConnectError("lost")
    writing.broker.faults |= {
        f"send {OUT}": Fault(lost, after=True),
        "abort": Fault(lost, after=aborted),
        "begin": Fault(lost),
    }
    writing.end.commit()
    assert writing.seen() == ALL


def test_a_transaction_that_timed_out_is_replaced(writing):
    writing.broker.transactions[writing.job.txn_id].state = "aborted"
    writing.end.commit()
    assert writing.seen() == ALL


def test_nothing_is_seen_when_an_attempts_transaction_is_over(writing):
    writing.broker.transactions[writing.written[1].txn_id].state = "aborted"
    with pytest.raises(InvalidTxnStatus):
        writing.end.commit()
    assert writing.seen() == []


def test_a_refusal_is_the_jobs_failure(writing):
    writing.broker.faults[f"send {OUT}"] = Fault(AuthorizationError("may not"))
    with pytest.raises(AuthorizationError):
        writing.end.commit()
    assert writing.seen() == []


def test_nothing_stays_open_of_a_job_that_failed(writing):
    writing.attempt("xyz")
    writing.end.abort()
    assert writing.states() == {"aborted"}
    assert writing.seen() == []


def test_an_attempt_that_fails_aborts_what_it_had_begun(writing):
    def breaking():
        yield entry("x")
        yield entry("yz")
        yield entry("w")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(writing.job, breaking())
    assert sorted(txn.state for txn in writing.broker.transactions.values()) == [
        "aborted",
        "open",
        "open",
    ]


def test_an_attempt_is_aborted_though_nobody_else_keeps_its_note(writing):
    killed = writing.attempt("xyz")
    writing.broker.lose_what_nobody_keeps()
    writing.end.commit()
    assert writing.broker.transactions[killed.txn_id].state == "aborted"


def test_notes_are_kept_as_long_as_a_job_may_need_them(monkeypatch):
    now_ms = 1_000_000
    monkeypatch.setattr(notes, "_now_ms", lambda: now_ms)
    first = Writing()
    broker, killed = first.broker, first.attempt("xyz")
    Writing(broker).end.commit()
    broker.trim()
    first.end.commit()
    assert broker.transactions[killed.txn_id].state == "aborted"
    now_ms += 1001
    Writing(broker).end.commit()
    broker.trim()
    topic = broker.topic(NOTES)
    assert topic.first == len(topic.entries), "the notes of all jobs are useless by now"


def test_a_job_of_someone_who_may_only_publish_is_written(writing, monkeypatch):
    def refuse(*_, **__):
        raise AuthorizationError("may not consume")

    monkeypatch.setattr(FakeClient, "subscribe", refuse)
    again = Writing(writing.broker)
    again.end.commit()
    assert again.seen() == ALL


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_zombie_that_begins_when_the_job_is_over_leaves_nothing_open(writing, end):
    """It would hide later messages from readers, and no process would end it."""
    getattr(writing.end, end)()
    seen = writing.seen()
    with pytest.raises(InvalidTxnStatus):
        writing.attempt("xyz")
    assert "open" not in writing.states()
    assert writing.seen() == seen
