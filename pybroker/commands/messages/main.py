"""Parses a command line, runs the command, and returns an exit code."""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn

from pybroker.base.arguments import Parser
from pybroker.base.version import version
from pybroker.client import PulsarException
from pybroker.commands.admin.rest import RestError
from pybroker.commands.messages import COMMANDS, consume, peek, produce, read
from pybroker.commands.messages.service import add_service
from pybroker.commands.terminal import for_reader, reader_left

_MODULES: Final[dict[str, ModuleType]] = {
    "produce": produce,
    "consume": consume,
    "read": read,
    "peek": peek,
}
_FAILED: Final = 1
_TERMINATED: Final = 143


def main(words: Sequence[str], like_pulsar_client: bool = False) -> int:
    """Runs one command and returns the exit code. `like_pulsar_client`: `produce` stores each
    message in its own entry.
    """
    options = parser().parse_args(words)
    options.one_entry_each = like_pulsar_client
    try:
        with _ending_in_order():
            options.run(options)
    except BrokenPipeError:
        return reader_left()
    except (PulsarException, RestError, ValueError, OSError) as error:
        print(for_reader(sys.stderr, f"pybroker {options.command}: {error}"), file=sys.stderr)
        return _FAILED
    return 0


def parser() -> argparse.ArgumentParser:
    whole = Parser(prog="pybroker", allow_abbrev=False)
    _add_general(whole)
    commands = whole.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, module in _MODULES.items():
        command = commands.add_parser(
            name, help=COMMANDS[name], description=module.__doc__, allow_abbrev=False
        )
        module.add_arguments(command)
        _add_general(command)
        command.set_defaults(run=module.run)
    return whole


def _add_general(parser: argparse.ArgumentParser) -> None:
    add_service(parser)
    parser.add_argument("-v", "--version", action=_Version, help="print the version and exit")


class _Version(argparse.Action):
    """Determines the version only when it is requested, because that takes a while."""

    def __init__(self, option_strings: Sequence[str], dest: str, **how: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=how.get("help"))

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(f"pybroker {version()}")
        parser.exit()


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Makes SIGTERM act like Ctrl-C: transactions are aborted, acknowledgements sent."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(_: int, __: FrameType | None) -> NoReturn:
    sys.exit(_TERMINATED)
