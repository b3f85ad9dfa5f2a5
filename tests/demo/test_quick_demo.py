"""`pybroker demo`, as in README.md and docs/first-minute.md: it must notice errors."""

import io
import subprocess
import sys
from typing import Any

import pytest
from documents import ROOT, blocks

from pybroker.base.colours import GREEN, coloured, shows_colours
from pybroker.demo.progress import ProgressBar
from pybroker.demo.quick import audit, make_orders
from pybroker.demo.report import Verdict
from pybroker.process.cli import FIRST_STEPS, main

ORDERS = make_orders(10)
PAYMENTS = [{"id": order["id"], "cents": order["cents"]} for order in ORDERS]
LEDGER = [
    entry
    for order in ORDERS
    for entry in (
        {"id": order["id"], "account": order["buyer"], "cents": -order["cents"]},
        {"id": order["id"], "account": "shop", "cents": order["cents"]},
    )
]


def holds(
    payments: list[dict[str, Any]] = PAYMENTS,
    ledger: list[dict[str, Any]] = LEDGER,
    unfinished: tuple[int, ...] = (3, 4),
) -> bool:
    verdict = Verdict()
    audit(verdict, ORDERS, payments, ledger, unfinished)
    return verdict.holds


def test_all_of_it_once_is_exactly_once() -> None:
    assert holds()


def test_what_is_missing_repeated_or_foreign_is_noticed() -> None:
    assert not holds(payments=PAYMENTS[1:])
    assert not holds(payments=[*PAYMENTS, PAYMENTS[3]])
    assert not holds(payments=[*PAYMENTS, {"id": 99, "cents": 1}])
    assert not holds(ledger=LEDGER[1:])
    assert not holds(ledger=[*LEDGER, *LEDGER[:2]])


def test_a_wrong_amount_is_noticed() -> None:
    assert not holds(payments=[PAYMENTS[0] | {"cents": 1}, *PAYMENTS[1:]])
    assert not holds(ledger=[LEDGER[0] | {"cents": 1}, *LEDGER[1:]])


def test_a_process_that_died_with_nothing_unfinished_shows_nothing() -> None:
    assert not holds(unfinished=())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_that_want_them() -> None:
    assert shows_colours(Terminal(), {})
    assert not shows_colours(Terminal(), {"NO_COLOR": "1"})
    assert not shows_colours(Terminal(), {"TERM": "dumb"})
    assert not shows_colours(io.StringIO(), {})
    assert coloured("ok", GREEN, io.StringIO()) == "ok"


def test_a_bar_is_redrawn_on_a_terminal_and_lines_follow_elsewhere() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        bar = ProgressBar("orders", 1000, stream)
        for done in range(0, 1001, 10):
            bar.show(done)
        bar.interrupt()
        bar.interrupt()
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith("1,000 of 1,000 orders\n")
    assert file.getvalue().count("\n") == 5
    assert "\r" not in file.getvalue()


def test_slow_work_writes_a_line_now_and_then_to_a_file() -> None:
    file, now_s = io.StringIO(), 100.0
    bar = ProgressBar("crashes", 1000, file, lambda: now_s)
    for done in (0, 1, 2, 2, 3):
        bar.show(done)
        now_s += 10
    bar.show(3)
    assert file.getvalue().splitlines() == [f"  {done} of 1,000 crashes" for done in (0, 2, 3)]


def test_pybroker_alone_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == FIRST_STEPS
    assert FIRST_STEPS.count("\n") == 3


@pytest.mark.parametrize("document", ["README.md", "docs/first-minute.md"])
def test_the_documents_begin_with_the_demo(document: str) -> None:
    first = blocks(ROOT / document)[0]
    assert first.text == "pip install .\npybroker demo\n"


@pytest.mark.slow
def test_the_demo_ends_with_exactly_once() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pybroker", "demo", "--orders", "600"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "EXACTLY ONCE" in ended.stdout
    assert "NOT EXACTLY ONCE" not in ended.stdout
    assert "600 payments for 600 orders: 0 missing, 0 repeated, 0 unexpected" in ended.stdout
