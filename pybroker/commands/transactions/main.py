"""`pybroker transactions blocking`, `watch`, `prepared`, `commit` and `abort`: parses, runs and
prints.
"""

import argparse
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any, Final

from pybroker.base.arguments import Parser
from pybroker.commands.admin.access import add_access, rest_of
from pybroker.commands.admin.rest import Rest, RestError
from pybroker.commands.terminal import for_reader, reader_left
from pybroker.commands.transactions import prepared
from pybroker.commands.transactions.blocking import as_json, as_table, ask
from pybroker.commands.transactions.keys import Pressed, single_keys

_EXIT_FAILED: Final = 1
_COMMIT: Final = "/admin/v3/transactions/{}/{}/commit"
_ABORT: Final = "/admin/v3/transactions/abortTransaction"
_FORMATS: Final[dict[str, Callable[[Any], str]]] = {"table": as_table, "json": as_json}
_CLEAR: Final = "\x1b[H\x1b[2J"


def main(arguments: Sequence[str]) -> int:
    """Runs one command and returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(rest_of(options), options)
        sys.stdout.flush()
    except BrokenPipeError:
        return reader_left()
    except (RestError, ValueError, OSError) as error:
        _complain(error)
        return _EXIT_FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="pybroker transactions", allow_abbrev=False)
    add_access(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    blocking = commands.add_parser(
        "blocking", help="list topics whose readers wait for open transactions"
    )
    blocking.set_defaults(run=_blocking)
    watch = commands.add_parser("watch", help="the same, refreshed every second; q or Ctrl-C quits")
    watch.set_defaults(run=_watch)
    watch.add_argument("--once", action="store_true", help="print once, like blocking")
    watch.add_argument("--interval", type=_seconds, default=1.0, metavar="S",
        help="seconds between refreshes (default 1)")  # fmt: skip
    waiting = commands.add_parser(
        "prepared", help="list prepared transactions, the longest prepared first"
    )
    waiting.set_defaults(run=_prepared)
    waiting.add_argument(
        "--limit", type=int, default=100, metavar="N", help="maximum number (default 100)"
    )
    waiting.add_argument("--principal", metavar="ROLE", help="show only those of this role")
    waiting.add_argument("--format", choices=("table", "json"), default="table")
    add_access(waiting, again=True)
    commit = commands.add_parser("commit", help="commit a transaction, such as a prepared one")
    commit.set_defaults(run=_commit)
    abort = commands.add_parser("abort", help="abort an open or a prepared transaction")
    abort.set_defaults(run=_abort)
    for each in (commit, abort):
        each.add_argument(
            "transaction",
            type=_txn_id,
            metavar="ID",
            help="transaction id as blocking and prepared show it, e.g. 8,0",
        )
        add_access(each, again=True)
    abort.add_argument(
        "-r", "--reason", default="", help="reason, shown to its owner and in the audit log"
    )
    for each in (blocking, watch):
        each.add_argument(
            "--limit",
            type=int,
            default=20,
            metavar="N",
            help="maximum number of topics (default 20)",
        )
        each.add_argument(
            "--namespace", metavar="TENANT/NAMESPACE", help="show only this namespace"
        )
        each.add_argument("--format", choices=_FORMATS, default="table")
        add_access(each, again=True)
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("0.1 to 3600 seconds")
    return seconds


def _txn_id(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"\(?([0-9]{1,20})[,:]([0-9]{1,20})\)?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a transaction id like 8,0")
    return found[1], found[2]


def _complain(error: Exception) -> None:
    print(for_reader(sys.stderr, f"pybroker transactions: {error}"), file=sys.stderr)


def _look(rest: Rest, options: Namespace) -> str:
    """The text to show. Raises RestError."""
    return _FORMATS[options.format](ask(rest, options.limit, options.namespace))


def _blocking(rest: Rest, options: Namespace) -> int:
    print(for_reader(sys.stdout, _look(rest, options)))
    return 0


def _prepared(rest: Rest, options: Namespace) -> int:
    found = prepared.ask(rest, options.limit, options.principal)
    text = as_json(found) if options.format == "json" else prepared.as_table(found)
    print(for_reader(sys.stdout, text))
    return 0


def _commit(rest: Rest, options: Namespace) -> int:
    rest.ask("POST", _COMMIT.format(*options.transaction))
    return 0


def _abort(rest: Rest, options: Namespace) -> int:
    most, least = options.transaction
    query = {"reason": options.reason} if options.reason else {}
    rest.ask("POST", f"{_ABORT}/{most}/{least}", query=query)
    return 0


def _watch(rest: Rest, options: Namespace) -> int:
    if options.once:
        return _blocking(rest, options)
    with single_keys() as pressed:
        _repeat(rest, options, pressed)
    return 0


def _repeat(rest: Rest, options: Namespace, pressed: Pressed) -> None:
    """Shows the list until q is pressed. Errors do not end it: a broker may be unreachable for a
    while.
    """
    redraws = sys.stdout.isatty()
    while True:
        try:
            text = _look(rest, options)
        except RestError as error:
            text = f"pybroker transactions: {error}"
        text = for_reader(sys.stdout, text)
        print(_CLEAR + _fitting(text) if redraws else text + "\n", flush=True)
        if pressed(options.interval) in ("q", "Q"):
            return


def _fitting(text: str) -> str:
    """The part of a text that fits the terminal: a longer one would scroll the rest away."""
    columns, rows = shutil.get_terminal_size()
    lines = [line[:columns] for line in text.split("\n")]
    return "\n".join(lines[: max(1, rows - 1)])
