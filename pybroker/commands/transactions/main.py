"""`pybroker transactions blocking`, `watch` and `abort`: from a command line to the screen."""

import argparse
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any, Final

from pybroker.commands.admin.access import add_access, rest_of
from pybroker.commands.admin.rest import Rest, RestError
from pybroker.commands.terminal import for_reader, reader_left
from pybroker.commands.transactions.blocking import as_json, as_table, ask
from pybroker.commands.transactions.keys import Pressed, single_keys

_EXIT_FAILED: Final = 1
_ABORT: Final = "/admin/v3/transactions/abortTransaction"
_FORMATS: Final[dict[str, Callable[[Any], str]]] = {"table": as_table, "json": as_json}
_CLEAR: Final = "\x1b[H\x1b[2J"


def main(arguments: Sequence[str]) -> int:
    """Run one command and return the process's exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(rest_of(options), options)
        sys.stdout.flush()
    except BrokenPipeError:
        return reader_left()
    except KeyboardInterrupt:
        return 0
    except (RestError, ValueError, OSError) as error:
        _complain(error)
        return _EXIT_FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pybroker transactions", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    blocking = commands.add_parser("blocking", help="topics whose readers wait, and for whom")
    blocking.set_defaults(run=_blocking)
    watch = commands.add_parser("watch", help="the same, each second; q or Ctrl-C ends it")
    watch.set_defaults(run=_watch)
    watch.add_argument("--once", action="store_true", help="look once, as blocking does")
    watch.add_argument("--interval", type=_seconds, default=1.0, metavar="S",
        help="seconds between two looks (default 1)")  # fmt: skip
    abort = commands.add_parser("abort", help="abort an open transaction, whoever owns it")
    abort.set_defaults(run=_abort)
    abort.add_argument("transaction", type=_txn_id, metavar="ID", help="as blocking shows it: 8,0")
    abort.add_argument("-r", "--reason", default="", help="for its owner and the audit")
    add_access(abort)
    for each in (blocking, watch):
        each.add_argument("--limit", type=int, default=20, metavar="N", help="topics (default 20)")
        each.add_argument("--namespace", metavar="TENANT/NAMESPACE", help="of this one only")
        each.add_argument("--format", choices=_FORMATS, default="table")
        add_access(each)
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("0.1 to 3600 seconds")
    return seconds


def _txn_id(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"\(?([0-9]{1,20})[,:]([0-9]{1,20})\)?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no transaction's id, as 8,0")
    return found[1], found[2]


def _complain(error: Exception) -> None:
    print(for_reader(sys.stderr, f"pybroker transactions: {error}"), file=sys.stderr)


def _look(rest: Rest, options: Namespace) -> str:
    """Raises RestError."""
    return _FORMATS[options.format](ask(rest, options.limit, options.namespace))


def _blocking(rest: Rest, options: Namespace) -> int:
    print(for_reader(sys.stdout, _look(rest, options)))
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
    """Until q. A broker that is away for a while comes back, so that ends nothing."""
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
    """What the terminal has room for: a longer line or page would scroll the rest away."""
    columns, rows = shutil.get_terminal_size()
    lines = [line[:columns] for line in text.split("\n")]
    return "\n".join(lines[: max(1, rows - 1)])
