"""The sink's protocol against a model of Spark, from seeds; and incorrect sinks that the model
detects.
"""

import contextlib
import logging

import pytest
import spark_sink_model
from spark_fakes import FakeTransaction
from spark_sink_model import Wrong

from pybroker.base.errors import PulsarError
from pybroker.spark.chain import Chain
from pybroker.spark.marker import Marker
from pybroker.spark.session import Session
from pybroker.spark.writing import attempt, batch_end
from pybroker.spark.writing.batch_end import BatchEnd, Step

SEEDS = range(100)
SEEDS_FOR_A_BUG = range(400)


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("pybroker.spark").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("pybroker.spark").setLevel(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[::25])
def test_each_row_is_visible_once_and_with_its_whole_batch(first):
    worlds = [spark_sink_model.run(seed) for seed in range(first, first + 25)]
    for happened in ("deaths", "skips", "zombies"):
        assert sum(getattr(world, happened) for world in worlds) > 10, happened


def commits_whatever_was_noted(monkeypatch):
    def commit(self, txn, attempts):
        session = Session(self.job.connect())
        noted = self.chain.noted(session, self.work.batch_id)
        is_open = [each for each in noted if txn.broker.transactions[each].state == "open"]
        txn.commit(together_with=[*is_open, *attempts])

    monkeypatch.setattr(Chain, "sweep", lambda *_: None)
    monkeypatch.setattr(BatchEnd, "_commit", commit)


def sends_outside_of_transactions(monkeypatch):
    sending = attempt.Sending
    monkeypatch.setattr(attempt, "Sending", lambda session, *_: sending(session, None))


def marks_after_the_commit(monkeypatch):
    def run(self, session):
        txn = session.client.new_transaction(1000, beside=self.job.txn_id)
        self.chain.acknowledge(session, txn)
        batch_end.publish_entries(session, self.written, txn)
        txn.commit(together_with=batch_end.accepted(self.written))
        self.on_step(Step.MARKED, self.work)
        marker = Marker(self.work.query_id, self.work.batch_id, txn.txn_id, {})
        self.chain.publish(session, marker, None)

    monkeypatch.setattr(BatchEnd, "_run", run)


def does_not_fence_by_markers(monkeypatch):
    monkeypatch.setattr(Chain, "acknowledge", lambda self, session, txn: None)


def commits_one_after_the_other(monkeypatch):
    together = FakeTransaction.commit

    def one_by_one(self, together_with=()):
        for txn_id in together_with:
            with contextlib.suppress(PulsarError):
                together(self.broker.transactions[txn_id])
        together(self)

    monkeypatch.setattr(FakeTransaction, "commit", one_by_one)


def takes_a_lost_answer_for_a_failure(monkeypatch):
    monkeypatch.setattr(batch_end, "decide", lambda *_: batch_end.Decision.RUN)


@pytest.mark.parametrize(
    "bug",
    [
        commits_whatever_was_noted,
        sends_outside_of_transactions,
        marks_after_the_commit,
        does_not_fence_by_markers,
        commits_one_after_the_other,
        takes_a_lost_answer_for_a_failure,
    ],
)
def test_the_model_catches_a_sink_that(monkeypatch, bug):
    bug(monkeypatch)
    with pytest.raises(Wrong) as caught:
        for seed in SEEDS_FOR_A_BUG:
            spark_sink_model.run(seed)
    print(f"{bug.__name__}: seed {seed}: {caught.value}")
