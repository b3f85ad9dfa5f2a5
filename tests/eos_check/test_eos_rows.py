"""Rows of a database, which `--rows` prints: judged as messages are."""

import sys
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from pybroker.client import Client
from pybroker.eos_check.clean_run import clean_run
from pybroker.eos_check.connection_trace import ConnectionTrace
from pybroker.eos_check.faults import Phase
from pybroker.eos_check.judgement import Promise, judge
from pybroker.eos_check.rows import ROWS, Rows
from pybroker.eos_check.run_result import CannotRun
from pybroker.eos_check.topics import Output, Topics
from pybroker.testing import broker
from pybroker.wire import pulsar_api_pb2 as pb


def rows(program: str) -> Rows:
    return Rows((sys.executable, "-c", program), {"EOS_DIRECTORY": "here"})


def row(number: int) -> Output:
    return Output(ROWS, "", b"eos-%06d" % number)


def test_each_line_is_a_row():
    found = rows("print('eos-000001\\n\\neos-000002')")
    assert found.read() == (row(1), row(2))
    found.require_read()


def test_without_a_command_there_are_none():
    found = Rows((), {})
    assert found.read() == ()
    found.require_read()


def test_a_command_that_fails_may_succeed_later_and_must_at_the_end():
    found = rows("import os; print(os.environ['EOS_DIRECTORY']); raise SystemExit(3)")
    assert found.read() == ()
    with pytest.raises(CannotRun, match="cannot read the rows: it ended with code 3: here"):
        found.require_read()
    missing = Rows(("/no/such/command",), {})
    assert missing.read() == ()
    with pytest.raises(CannotRun, match="No such file"):
        missing.require_read()


def test_a_command_that_never_prints_a_row_judges_nothing(monkeypatch: pytest.MonkeyPatch):
    """It reads another database, for example."""
    message = Output("out", "k", b"eos-000001")
    result = SimpleNamespace(stuck="", backlogs={}, outputs=(message,), log="")
    monkeypatch.setattr("pybroker.eos_check.clean_run.run", lambda *_: result)
    settings: Any = SimpleNamespace(rows=("rows",), outputs=("out",), input="in", kafka=False)
    with pytest.raises(CannotRun, match="printed nothing"):
        clean_run(settings, Event())
    result.outputs += (row(1),)
    assert clean_run(settings, Event()) is result


def test_a_row_without_its_message_is_half_and_a_second_row_is_doubled():
    message = Output("out", "k", b"eos-000001")
    (half,) = judge((message,), (message, row(1)), None)
    assert (half.promise, half.ids) == (Promise.PARTIAL, ("eos-000001",))
    assert "eos-000001 on the rows is missing, but eos-000001 on out is there" in half.text
    (doubled,) = judge((message, row(1), row(1)), (message, row(1)), None)
    assert doubled.promise is Promise.DOUBLED


def test_a_prepare_is_a_step():
    trace = ConnectionTrace()
    asked = pb.CommandPrepareTxn(request_id=7, txnid_most_bits=1, txnid_least_bits=2, name="n")
    answer = pb.CommandPrepareTxnResponse(request_id=7, txnid_most_bits=1, txnid_least_bits=2)
    kinds = pb.BaseCommand
    before = trace.from_client(pb.BaseCommand(type=kinds.PREPARE_TXN, prepareTxn=asked))
    after = trace.from_broker(
        pb.BaseCommand(type=kinds.PREPARE_TXN_RESPONSE, prepareTxnResponse=answer)
    )
    assert before.passing is not None and after.passing is not None
    assert str(before.passing.step) == "PREPARE_TXN"
    assert (before.passing.phase, after.passing.phase) == (Phase.BEFORE, Phase.AFTER)
    assert after.event is not None and after.event.txn == (1, 2)


def test_what_is_prepared_is_not_aborted_as_by_its_timeout():
    with broker(http=True) as running, Client(running.service_url) as client:
        topics = Topics(running.service_url, running.admin_url)
        prepared, left = client.new_transaction(), client.new_transaction()
        prepared.prepare("database")
        assert topics.abort(prepared.txn_id) is False
        assert topics.abort(left.txn_id) is True
        prepared.commit()
