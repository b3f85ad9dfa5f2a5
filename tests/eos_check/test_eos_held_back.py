"""What an open transaction holds back is judged after its timeout, not called lost."""

import threading
from pathlib import Path

import pytest

from pybroker.eos_check import asked, run
from pybroker.eos_check.connection_trace import Event
from pybroker.eos_check.left_open import LeftOpen
from pybroker.eos_check.run_result import Clean
from pybroker.eos_check.settings import Settings
from pybroker.eos_check.topics import Output
from pybroker.testing.broker_process import BrokerProcess

INVOICE = Output("eos-output", "", b"eos-000001")
TXN = (0, 7)


class Topics:
    """An invoice is visible only once the open transaction has ended."""

    def __init__(self, backlog: int) -> None:
        self.backlog = backlog
        self.aborted: list[tuple[int, int]] = []

    def read(self, _: object) -> tuple[Output, ...]:
        return (INVOICE, INVOICE) if self.aborted else ()

    def backlogs(self, _: str) -> dict[str, int]:
        return {"s": 0 if self.aborted else self.backlog}

    def open_transactions(self) -> list[tuple[tuple[int, int], int]]:
        return []

    def abort(self, txn: tuple[int, int]) -> bool:
        self.aborted.append(txn)
        return True


class Clock:
    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (asked, run):
        monkeypatch.setattr(module, "time", clock)
    return clock


def a_run(topics: Topics, found: tuple[Output, ...] = (INVOICE,)) -> run._Run:
    clean = Clean(found, frozenset({"s"}), True, 1.0)
    broker = BrokerProcess(Path("unused"))
    made = run._Run(Settings(()), (), clean, threading.Event(), broker)
    made._topics = topics  # type: ignore[assignment]
    pipeline = {"lives": 1, "exit_code": lambda self: None}
    made._pipeline = type("Pipeline", (), pipeline)()  # type: ignore[assignment]
    made._seen_life = 1
    made._left_open = LeftOpen(made._topics, False, made._note)
    made._left_open.follow(Event("NEW_TXN", answer=True, txn=TXN), life=1)
    return made


def caught_up_after(made: run._Run, clock: Clock, quiet_s: float) -> bool:
    clock.now_s = made._moved_s + quiet_s
    return made._has_caught_up(quiet_s)


def test_output_behind_a_transaction_of_the_living_pipeline_is_waited_for(clock: Clock) -> None:
    topics = Topics(backlog=0)
    made = a_run(topics)
    assert not caught_up_after(made, clock, made._settle_s() - 0.1)
    assert topics.aborted == []
    assert not caught_up_after(made, clock, made._settle_s())
    assert topics.aborted == [TXN]
    assert made.result.events[-1].what == "TIMEOUT"
    assert caught_up_after(made, clock, made._settle_s())
    assert made.result.outputs == (INVOICE, INVOICE)  # doubled, which is the truth


def test_a_transaction_that_holds_the_input_has_longer(clock: Clock) -> None:
    topics = Topics(backlog=1)
    made = a_run(topics)
    assert not caught_up_after(made, clock, run._FORGOTTEN_S - 0.1)
    assert topics.aborted == []
    assert not caught_up_after(made, clock, run._FORGOTTEN_S)
    assert topics.aborted == [TXN]


def test_a_transaction_that_holds_nothing_back_is_left_alone(clock: Clock) -> None:
    """Such as one that is begun before the next message comes."""
    topics = Topics(backlog=0)
    made = a_run(topics, found=())
    assert caught_up_after(made, clock, made._settle_s())
    assert topics.aborted == []
