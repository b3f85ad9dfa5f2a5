"""`pybroker transactions blocking`, `watch`, `prepared`, `commit` and `abort`."""

import json
import os
import pty
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from pybroker.base.errors import InvalidTxnStatus
from pybroker.client import Client
from pybroker.commands.transactions import main as command
from pybroker.commands.transactions.blocking import as_table, span
from pybroker.process.cli import main
from pybroker.testing import RunningBroker

Ran = Callable[..., tuple[int, str, str]]


@pytest.fixture
def transactions(broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Ran:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(["transactions", *words, "--admin-url", broker.admin_url])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def blocked(client: Client, topic: str) -> Iterator[Any]:
    """An open transaction on two topics."""
    txn = client.new_transaction()
    for name in (topic, f"{topic}-too"):
        client.create_producer(name).send(b"in", txn=txn)
    client.create_producer(topic).send(b"behind")
    yield txn
    txn.abort()


def test_a_table_says_which_transaction_blocks_which_readers(
    transactions: Ran, blocked: Any, topic: str
) -> None:
    code, out, err = transactions("blocking")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "3 entries wait in 2 topics"
    assert lines[2].split() == [
        *("TOPIC", "BLOCKED", "SINCE", "TRANSACTION", "OWNER", "TOUCHES", "TIME", "LEFT")
    ]
    assert re.split(r"\s{2,}", lines[3])[:2] == [f"public/default/{topic}", "2"]
    assert f"({blocked.txn_id.most},{blocked.txn_id.least}) OPEN" in lines[3]
    assert f"public/default/{topic}-too" in lines[3] and lines[3].endswith(" s")


def test_a_label_stands_beside_the_owner(transactions: Ran, client: Client, topic: str) -> None:
    txn = client.new_transaction()
    labelled = client.create_producer(topic, properties={"txn.label": "nightly"})
    labelled.send(b"in", txn=txn)
    assert "- (nightly)" in transactions("blocking")[1]
    txn.abort()


def test_json_is_what_the_route_answers(transactions: Ran, blocked: Any) -> None:
    found = json.loads(transactions("blocking", "--format", "json", "--limit", "1")[1])
    assert (found["blockedTopics"], len(found["topics"])) == (2, 1)
    assert transactions("watch", "--once", "--namespace", "public/none")[1] == (
        "No transaction blocks readers.\n"
    )


def test_what_the_broker_refuses_is_a_sentence(transactions: Ran) -> None:
    code, out, err = transactions("blocking", "--limit", "5000")
    assert (code, out) == (1, "")
    assert err == "pybroker transactions: HTTP 400: limit is 5000; it must be 1 to 1000\n"
    code, _, err = transactions("watch", "--once", "--token", "x", "--admin-url", "ftp://a")
    assert code == 0 or "is not a" in err


def test_it_looks_again_until_q_is_pressed(
    transactions: Ran, blocked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, keyboard = pty.openpty()
    with closing(os.fdopen(terminal, "wb", buffering=0)) as keys:
        monkeypatch.setattr(sys, "stdin", os.fdopen(keyboard))
        presses, ask = iter(b"xq"), command.ask

        def ask_and_press(*arguments: Any) -> Any:
            keys.write(bytes([next(presses)]))
            return ask(*arguments)

        monkeypatch.setattr(command, "ask", ask_and_press)
        code, out, _ = transactions("watch", "--interval", "30")
    assert code == 0
    assert out.count("3 entries wait in 2 topics") == 2, "after x, and not after q"
    assert "\x1b" not in out, "a file is not redrawn"


def test_a_terminal_is_redrawn_and_what_has_no_room_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("LINES", "3")
    monkeypatch.setattr(command, "_look", lambda *_: "0123456789abc\n1\n2\n3")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    options: Any = command._parser().parse_args(["watch"])
    command._repeat(None, options, lambda _: "q")  # type: ignore[arg-type]
    assert capsys.readouterr().out == "\x1b[H\x1b[2J0123456789\n1\n"


def test_a_broker_that_is_away_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([command.RestError("it is away"), "it is back"])

    def look(*_: object) -> str:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    presses = iter(["", "Q"])
    monkeypatch.setattr(command, "_look", look)
    options: Any = command._parser().parse_args(["watch"])
    command._repeat(None, options, lambda _: next(presses))  # type: ignore[arg-type]
    assert capsys.readouterr().out == "pybroker transactions: it is away\n\nit is back\n\n"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["transactions", "watch"], "pybroker.commands.transactions.main._repeat"),
        (["faults", "rules"], "pybroker.commands.faults.main.rest_of"),
        (["produce", "t", "-m", "a"], "pybroker.commands.messages.produce.connect"),
        (["consume", "t", "-s", "s"], "pybroker.commands.messages.consume.connect"),
        (["admin", "tenants", "list"], "pybroker.commands.admin.main.rest_of"),
        (["doctor"], "pybroker.doctor.main.report"),
    ],
)
def test_ctrl_c_ends_a_command_with_a_word_and_130(
    words: list[str],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(what, interrupted)
    assert main(words) == 130
    assert capsys.readouterr().err.endswith("pybroker: interrupted\n")


@pytest.mark.parametrize("interval", ("0", "nan", "x"))
def test_an_interval_is_bounded(interval: str) -> None:
    with pytest.raises(SystemExit):
        command.main(["watch", "--interval", interval])


def test_a_row_of_an_unknown_transaction_and_of_one_with_many_participants() -> None:
    blocking = {
        "txnId": "(0,1)", "status": "COMMITTING", "owner": "alice", "openTimestamp": 0,
        "ageMs": 200_000, "timeLeftMs": 5000, "topicCount": 30_000, "subscriptionCount": 2,
        "topics": ["persistent://a/b/c\n", *(f"persistent://a/b/{n}" for n in range(9))],
    }  # fmt: skip
    topic = {"topic": "persistent://a/b/c\n", "blockedEntries": 7, "openTransactions": 3}
    unknown = blocking | {
        "status": "UNKNOWN", "owner": None, "timeLeftMs": None, "topics": [],
        "topicCount": None, "subscriptionCount": None,
    }  # fmt: skip
    rows = [topic | {"blocking": blocking}, topic | {"blocking": unknown}]
    lines = as_table({"topics": rows, "blockedTopics": 9, "blockedEntries": 70}).splitlines()
    assert lines[0] == "70 entries wait in 9 topics; the 2 with the most:"
    assert re.split(r"\s{2,}", lines[3]) == [
        "a/b/c\\n", "7", "1970-01-01 00:00:00Z (3 min)", "(0,1) COMMITTING +2", "alice",
        "a/b/0, a/b/1, a/b/2, 29996 more, 2 subscriptions", "-",
    ]  # fmt: skip
    assert lines[4].split()[-3:] == ["-", "-", "-"]


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [(0, "0 s"), (119_999, "119 s"), (120_000, "2 min"), (7_200_000, "2 h"), (172_800_000, "2 d")],
)
def test_spans_are_said_as_people_do(milliseconds: int, said: str) -> None:
    assert span(milliseconds) == said


@pytest.mark.parametrize("form", ["({},{})", "{}:{}"])
def test_a_transaction_is_aborted_by_its_id_as_it_is_shown(
    transactions: Ran, client: Client, form: str
) -> None:
    txn = client.new_transaction()
    written = form.format(*txn.txn_id)
    assert transactions("abort", written, "--reason", "it blocks the report") == (0, "", "")
    with pytest.raises(InvalidTxnStatus, match="an administrator aborted it: it blocks the report"):
        txn.commit()


def test_what_is_no_transaction_is_said(
    transactions: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = transactions("abort", "0,99999999")
    assert code == 1
    assert "pybroker transactions: " in err and "does not exist" in err
    with pytest.raises(SystemExit):
        transactions("abort", "eight")
    assert "'eight' is not a transaction id like 8,0" in capsys.readouterr().err


# -- prepared transactions


def ids(txn: Any) -> str:
    return f"{txn.txn_id.most},{txn.txn_id.least}"


def test_prepared_ones_are_listed_and_decided(
    transactions: Ran, client: Client, topic: str
) -> None:
    assert transactions("prepared") == (0, "No transaction is prepared.\n", "")
    first, second = client.new_transaction(), client.new_transaction()
    client.create_producer(topic).send(b"in", txn=first)
    first.prepare("shop")
    second.prepare()
    code, out, _ = transactions("prepared")
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "2 transactions are prepared and wait for a decision")
    assert re.split(r"\s{2,}", lines[2]) == [
        *("TRANSACTION", "PREPARED FOR", "OWNER", "NAME", "BLOCKED", "TOPICS")
    ]
    row = re.split(r"\s{2,}", lines[3])
    assert (row[0], row[2:4], row[5]) == (
        f"({ids(first)})",
        ["-", "shop"],
        f"public/default/{topic}",
    )
    assert lines[4].startswith(f"({ids(second)})")
    code, out, _ = transactions("prepared", "--limit", "1", "--format", "json")
    assert [each["preparedName"] for each in json.loads(out)["transactions"]] == ["shop"]
    code, out, _ = transactions("prepared", "--limit", "1")
    assert out.splitlines()[0].endswith("for a decision; the 1 oldest:")
    assert transactions("commit", ids(first)) == (0, "", "")
    assert transactions("abort", ids(second)) == (0, "", "")
    first.commit()
    with pytest.raises(InvalidTxnStatus, match="an administrator aborted it"):
        second.commit()
    assert transactions("prepared")[1] == "No transaction is prepared.\n"


def test_what_has_been_aborted_cannot_be_committed(transactions: Ran, client: Client) -> None:
    txn = client.new_transaction()
    txn.abort()
    code, _, err = transactions("commit", ids(txn))
    assert code == 1 and "ABORTED" in err
