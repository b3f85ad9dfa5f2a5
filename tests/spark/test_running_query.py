"""A query in the foreground; Spark's part is played."""

import os
import signal
from threading import Thread

import pytest

from pybroker.spark import run


class Query:
    name, id = "ledger", "0f3c9a4e"
    lastProgress = None

    def __init__(self, *waits):
        """`waits`: for each wait, what happens meanwhile; its result is whether the query ends."""
        self.waits = list(waits)
        self.is_stopped = False
        self.status = {"message": "Initializing sources", "isDataAvailable": False}

    def awaitTermination(self, timeout):
        return self.waits.pop(0)(self)

    def stop(self):
        self.is_stopped = True


def initializes(query):
    query.status = {"message": "Waiting for data to arrive", "isDataAvailable": False}
    return False


def is_interrupted(query):
    os.kill(os.getpid(), signal.SIGINT)
    return False


def goes_on(query):
    return False


def ends(query):
    return True


def fails(query):
    raise ZeroDivisionError


def test_it_says_once_when_it_is_ready_and_that_it_has_ended():
    said = []
    run(Query(initializes, goes_on, goes_on, ends), said.append)
    assert said == ["Query ledger is running. Ctrl-C stops it.", "Query ledger has ended."]


def test_an_interrupt_stops_it_in_one_line():
    query, said, before = Query(initializes, goes_on, is_interrupted), [], signal.getsignal(2)
    run(query, said.append)
    assert query.is_stopped
    assert len(said) == 2
    assert "was stopped" in said[1]
    assert signal.getsignal(2) is before


def test_a_failure_is_raised():
    before = signal.getsignal(2)
    with pytest.raises(ZeroDivisionError):
        run(Query(fails))
    assert signal.getsignal(2) is before


def test_another_thread_leaves_interrupts_alone():
    said, before = [], signal.getsignal(2)
    thread = Thread(target=run, args=(Query(initializes, ends), said.append))
    thread.start()
    thread.join(60)
    assert said[-1] == "Query ledger has ended."
    assert signal.getsignal(2) is before
