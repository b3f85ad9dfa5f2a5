"""The `pybroker` command.

`standalone` binds its ports first (so a taken port leaves the data directory untouched), then
recovers the data directory, and listens only after that has succeeded. Imports are as late as
possible, so that the binary port accepts connections within a few hundred milliseconds.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Final, TextIO

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.version import version
from pybroker.commands.messages import COMMANDS as MESSAGE_COMMANDS
from pybroker.logs.levels import Levels
from pybroker.logs.lines import FORMATS
from pybroker.process.configuration import configuration, described
from pybroker.process.serving import in_a_cluster, on_own_storage, refuse, run

_INTERRUPTED: Final = 130

FIRST_STEPS: Final = """\
pybroker demo          pay orders in transactions while processes are killed; ten seconds
pybroker standalone    run a broker; its console is at http://localhost:8080/console
pybroker --help        all commands; pybroker COMMAND --help explains one
"""

# Commands with a parser of their own, slow to import.
_TOOLS: Final = {
    "admin": "pybroker.commands.admin.main",
    "check": "pybroker.checking.main",
    "demo": "pybroker.demo.quick",
    "eos-check": "pybroker.eos_check.main",
    "faults": "pybroker.commands.faults.main",
    "hand-over": "pybroker.handing_over.main",
    "move": "pybroker.moving.main",
    "simulate": "pybroker.simulation.main",
    "transactions": "pybroker.commands.transactions.main",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the process's exit code."""
    if not all(_takes_everything(stream) for stream in (sys.stdout, sys.stderr)):
        from pybroker.commands.terminal import write_similar_signs

        write_similar_signs(sys.stdout, sys.stderr)
    try:
        return _command(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # unless the command says more about it
        print("pybroker: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _takes_everything(stream: TextIO | None) -> bool:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return bool(encoding.lower().replace("-", "") == "utf8")


def _command(words: list[str]) -> int:
    if not words:
        print(FIRST_STEPS, end="")
        return 0
    if words[:1] in (["--version"], ["-V"]):
        return _version()
    if (tool := _TOOLS.get(words[0])) is not None:
        exit_code: int = import_module(tool).main(words[1:])
        return exit_code
    if words[0] in ("client", *MESSAGE_COMMANDS):
        from pybroker.commands.messages.main import main as messages

        is_client = words[0] == "client"
        return messages(words[1:] if is_client else words, like_pulsar_client=is_client)
    options = _parser(words[0]).parse_args(words)
    return int(options.run(options))


def _parser(command: str = "") -> argparse.ArgumentParser:
    """With the options of the tools only if `command` is one: a broker does not load them."""
    from pybroker.base.arguments import Parser

    parser = Parser(
        prog="pybroker", description="A message broker for official Apache Pulsar clients."
    )
    # Handled in `_command`, before parsing; declared here for --help.
    parser.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    say_version = commands.add_parser("version", help="print the version")
    say_version.set_defaults(run=_version)
    _add_standalone(commands.add_parser("standalone", help="run a broker with its own storage"))
    _add_broker(
        commands.add_parser(
            "broker", help="run one of several brokers, on BookKeeper and ZooKeeper"
        )
    )
    commands.add_parser(
        "demo", help="pay orders exactly once while processes are killed, in ten seconds"
    )
    doctor = commands.add_parser("doctor", help="check whether a broker runs well on this machine")
    _add_settings(doctor)
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")
    doctor.set_defaults(run=_doctor)
    commands.add_parser("check", help="check a data directory while no broker uses it")
    commands.add_parser(
        "move", help="copy all data from a directory to a BookKeeper cluster, or back"
    )
    commands.add_parser(
        "hand-over", help="prepare a cluster so that Apache Pulsar's brokers can take over"
    )
    commands.add_parser(
        "eos-check", help="crash a pipeline at each step, and check that it is exactly once"
    )
    commands.add_parser(
        "simulate", help="run your asyncio code with a broker and faults, and judge the result"
    )
    tokens = commands.add_parser("tokens", help="create and check tokens, and keys that sign them")
    if command == "tokens":
        from pybroker.security.token_tool import add_tokens

        add_tokens(tokens)
    certificates = commands.add_parser(
        "certificates", help="create a certificate authority and certificates"
    )
    if command == "certificates":
        from pybroker.security.certificate_tool import add_certificates

        add_certificates(certificates)
    commands.add_parser("admin", help="pulsar-admin's commands, for any broker; see admin --help")
    commands.add_parser(
        "transactions", help="show which transactions block readers, and abort them"
    )
    commands.add_parser("faults", help="fault points of a broker in test mode, and its clock")
    for name, summary in MESSAGE_COMMANDS.items():
        commands.add_parser(name, help=summary)
    commands.add_parser(
        "client", help="the four commands above in pulsar-client's form, an entry for each message"
    )
    return parser


def _add_standalone(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_standalone)
    _add_settings(parser)
    parser.add_argument("--no-http", action="store_true", help="do not serve the admin REST API")
    _add_print_config(parser)


def _add_broker(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_broker, durability=None, test_mode=False, no_http=False)
    _add_common_settings(parser)
    _add_print_config(parser)


def _add_print_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print every setting and where it comes from, and do not start",
    )


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """The options of a standalone broker; the doctor uses them too."""
    _add_common_settings(parser)
    add = parser.add_argument
    add(
        "--data-dir",
        type=Path,
        default=Path("pybroker-data"),
        help="all data (default ./pybroker-data)",
    )
    add(
        "--durability",
        choices=("fsync", "relaxed"),
        help="relaxed: receipts do not wait for the disk; a power failure may lose messages",
    )
    add(
        "--test-mode",
        action="store_true",
        help="for tests: fault points, and a clock to advance; see pybroker faults --help",
    )


def _add_common_settings(parser: argparse.ArgumentParser) -> None:
    """The options of a broker on any storage."""
    add = parser.add_argument
    add("--bind", metavar="HOST", help="address to listen on (default 127.0.0.1)")
    add("--port", type=_port, help="binary port; 0 picks a free one (default 6650)")
    add("--http-port", type=_port, help="admin REST port; 0 picks a free one (default 8080)")
    add(
        "--kafka",
        action="store_const",
        const=9092,
        dest="kafka_port",
        help="serve Kafka's clients, too",
    )
    add("--kafka-port", type=_port, help="port for them; 0 picks a free one (default 9092)")
    add("--config", type=Path, metavar="FILE", help="broker.conf, or a .toml with its keys")
    add(
        "--log-level",
        type=_log_level,
        metavar="LEVEL[,AREA=LEVEL…]",
        help="debug, info (default), warning, error or off, for everything or per area; "
        "access=info logs every HTTP request",
    )
    add("--log-format", choices=FORMATS, help="log line format (default text)")
    add(
        "--insecure",
        action="store_true",
        help="allow listening on a reachable address without authentication",
    )


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:6]) <= 65_535):
        raise argparse.ArgumentTypeError(f"{text[:80]} is not a port (0 to 65535)")
    return int(text)


def _log_level(text: str) -> str:
    try:
        return str(Levels.parse(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _version(_: argparse.Namespace | None = None) -> int:
    print(f"pybroker {version()}")
    return 0


def _print_config(options: argparse.Namespace) -> int:
    origins: dict[str, str] = {}
    try:
        config = configuration(options, origins)
    except ValueError as error:
        return refuse(error)
    print(described(config, origins))
    return 0


def _standalone(options: argparse.Namespace) -> int:
    return _print_config(options) if options.print_config else run(options, on_own_storage)


def _broker(options: argparse.Namespace) -> int:
    return _print_config(options) if options.print_config else run(options, in_a_cluster)


def _doctor(options: argparse.Namespace) -> int:
    from pybroker.doctor.main import report

    try:
        config: BrokerConfig | ValueError = configuration(options)
    except ValueError as error:
        config = error
    return report(config, options.data_dir, options.json)
