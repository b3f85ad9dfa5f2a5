"""The `pybroker` command.

`standalone` binds its ports first (so a taken port leaves the data directory untouched), then
recovers the data directory, and listens only after that has succeeded. A failed start prints one
line on stderr; a successful start prints the URLs in one line on stdout. Imports are as late as
possible, so that the binary port accepts connections within a few hundred milliseconds.
"""

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.version import version
from pybroker.commands.messages import COMMANDS as MESSAGE_COMMANDS
from pybroker.logs.control import LogControl
from pybroker.logs.levels import Levels
from pybroker.logs.line_writer import LineWriter
from pybroker.logs.lines import FORMATS, TEXT
from pybroker.logs.output import drain_log, log_as, log_to
from pybroker.process.configuration import configuration, described
from pybroker.process.paced_loop import paced_loop
from pybroker.process.reloading import reload_on_hangup

if TYPE_CHECKING:
    from pybroker.faults.registry import Faults
    from pybroker.process.app import Broker
    from pybroker.testing.clock import VirtualClock

EXIT_CANNOT_START: Final = 1
EXIT_DISK_FAILED: Final = 70
EXIT_SESSION_LOST: Final = 71
_INTERRUPTED: Final = 130
EXIT_SECOND_SIGNAL: Final = 130
# Thresholds: a number of objects, then numbers of collections of the previous generation. The first
# is large enough that the objects of dozens of open transactions come and go without a collection.
# A collection of generation 1 visits about 6,000 objects; with 20,000 it paused everything for up
# to 30 ms on a busy machine.
GARBAGE_THRESHOLDS: Final = (3_000, 1, 9_000)

log = logging.getLogger("pybroker")


FIRST_STEPS: Final = """\
pybroker demo          pay orders in transactions while processes are killed; ten seconds
pybroker standalone    run a broker; its console is at http://localhost:8080/console
pybroker --help        all commands; pybroker COMMAND --help explains one
"""


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
    if words[:1] == ["admin"]:
        from pybroker.commands.admin.main import main as admin  # slow to import

        return admin(words[1:])
    if words[:1] == ["check"]:
        from pybroker.checking.main import main as check

        return check(words[1:])
    if words[:1] == ["move"]:
        from pybroker.moving.main import main as move

        return move(words[1:])
    if words[:1] == ["hand-over"]:
        from pybroker.handing_over.main import main as hand_over

        return hand_over(words[1:])
    if words[:1] == ["simulate"]:
        from pybroker.simulation.main import main as simulate

        return simulate(words[1:])
    if words[:1] == ["demo"]:
        from pybroker.demo.quick import main as demo

        return demo(words[1:])
    if words[:1] == ["eos-check"]:
        from pybroker.eos_check.main import main as eos_check

        return eos_check(words[1:])
    if words[:1] == ["transactions"]:
        from pybroker.commands.transactions.main import main as transactions

        return transactions(words[1:])
    if words[:1] == ["faults"]:
        from pybroker.commands.faults.main import main as faults

        return faults(words[1:])
    if words and words[0] in ("client", *MESSAGE_COMMANDS):
        from pybroker.commands.messages.main import main as messages

        is_client = words[0] == "client"
        return messages(words[1:] if is_client else words, like_pulsar_client=is_client)
    options = _parser(words[0] if words else "").parse_args(words)
    exit_code: int = options.run(options)
    return exit_code


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
        return _refuse(error)
    print(described(config, origins))
    return 0


def _standalone(options: argparse.Namespace) -> int:
    return _print_config(options) if options.print_config else _run(options, _on_own_storage)


def _broker(options: argparse.Namespace) -> int:
    return _print_config(options) if options.print_config else _run(options, _in_a_cluster)


# Runs a broker until it is told to stop, and returns the process's exit code.
Running = Callable[[BrokerConfig, argparse.Namespace, LogControl], int]


def _run(options: argparse.Namespace, running: Running) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    output = log_to(LineWriter(sys.stderr.fileno()))
    try:
        config = configuration(options)
    except ValueError as error:
        output.begin(options.log_format or TEXT)
        return _refuse(error)
    logs = LogControl(Levels.parse(config.log_level), output.recent)
    log_as(output, Levels.parse(config.log_level), config.log_format)
    if not config.local_only and config.authentication_enabled and _listens_without_tls(config):
        log.warning(
            "credentials and messages travel unencrypted: set brokerServicePortTls and "
            "webServicePortTls, and leave brokerServicePort and webServicePort empty"
        )
    return running(config, options, logs)


def _in_a_cluster(config: BrokerConfig, options: argparse.Namespace, logs: LogControl) -> int:
    from pybroker.process.clustered import cluster_broker

    if config.test_mode:
        return _refuse(ValueError("a broker of a cluster has no test mode: leave out testMode"))

    async def started(config: BrokerConfig, stop: Callable[[], None]) -> "Broker":
        return await cluster_broker(config, True, stop, logs, _session_lost)

    with asyncio.Runner(loop_factory=paced_loop) as runner:
        return runner.run(_serve(config, options, logs, started, config.metadata_store_url))


def _on_own_storage(config: BrokerConfig, options: argparse.Namespace, logs: LogControl) -> int:
    if not config.journal_sync_data:
        log.warning("durability is relaxed: a power failure may lose acknowledged messages")
    if config.metadata_store_url:
        log.warning("metadataStoreUrl has no effect on standalone: pybroker broker uses it")
    if config.test_mode and options.no_http:
        return _refuse(ValueError("test mode needs the admin API: leave out --no-http"))
    clock = None
    new_loop: Callable[[], asyncio.AbstractEventLoop] = paced_loop
    if config.test_mode:
        from pybroker.testing.clock import AdvancingLoop, VirtualClock

        log.warning(
            "test mode: everyone on this machine can crash the broker and advance its clock"
        )
        clock = VirtualClock()
        new_loop = partial(AdvancingLoop, clock)

    async def started(config: BrokerConfig, stop: Callable[[], None]) -> "Broker":
        from pybroker.process.app import embedded_backend, standalone

        backend = embedded_backend(config, options.data_dir, _disk_failed)
        faults = None if clock is None else _faults(clock)
        return await standalone(config, backend, not options.no_http, clock, stop, logs, faults)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_serve(config, options, logs, started, str(options.data_dir.absolute())))


def _doctor(options: argparse.Namespace) -> int:
    from pybroker.doctor.main import report

    try:
        config: BrokerConfig | ValueError = configuration(options)
    except ValueError as error:
        config = error
    return report(config, options.data_dir, options.json)


def _listens_without_tls(config: BrokerConfig) -> bool:
    ports = config.broker_service_port, config.web_service_port, config.kafka_service_port
    return any(port is not None for port in ports)


async def _serve(
    config: BrokerConfig,
    options: argparse.Namespace,
    logs: LogControl,
    started: "Callable[[BrokerConfig, Callable[[], None]], Awaitable[Broker]]",
    storage: str,
) -> int:
    from pybroker.process.descriptors import connections, raise_limit
    from pybroker.process.ports import StartFailed

    configured = config
    limit = raise_limit()
    tls_ports = (config.broker_service_port_tls, config.web_service_port_tls)
    allowed = connections(
        config.broker_max_connections or limit, limit, sum(port is not None for port in tls_ports)
    )
    if config.broker_max_connections == 0:
        config = replace(config, broker_max_connections=allowed)
    elif allowed < config.broker_max_connections:
        config = replace(config, broker_max_connections=allowed)
        log.warning(
            "only %d connections: this process may open %d files; raise that limit (ulimit -n)",
            allowed,
            limit,
        )
    stop = asyncio.Event()
    _stop_on_signals(stop)
    _collect_garbage_seldom()
    try:
        broker = await started(config, stop.set)
    except StartFailed as error:
        return _refuse(error)
    gc.freeze()  # the objects loaded so far are permanent: collections skip them
    reload_on_hangup(partial(configuration, options), configured, broker, logs)
    sys.stdout.write(_ready_line(broker))  # not print: unbuffered, it writes the newline later
    sys.stdout.flush()
    log.info("version %s serves %s", version(), storage)
    _keep_memory_at_hand()
    await stop.wait()
    await broker.stop()
    log.info("stopped; all data is on disk")
    return 0


def _faults(clock: "VirtualClock") -> "Faults":
    """Fault points at which the process can end as if by kill -9."""
    from pybroker.faults.registry import Faults

    faults = Faults(clock)
    faults.attach(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    faults.record()
    return faults


def _collect_garbage_seldom() -> None:
    """A broker allocates few cyclic objects, but collections visit its live objects again and
    again. That took a fifth of the CPU time of small transactions, and an eighth of the CPU time of
    a broker's start with many open ones. Young objects are collected a few thousand at a time,
    because a collection pauses everything.
    """
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def _keep_memory_at_hand() -> None:
    from pybroker.process.memory import (
        keep_memory_at_hand,  # slow to import; the broker is already serving
    )

    keep_memory_at_hand()


def _ready_line(broker: "Broker") -> str:
    plain = broker.service_url, broker.admin_url, broker.kafka_url
    tls = broker.service_url_tls, broker.admin_url_tls, broker.kafka_url_tls
    return " ".join(filter(None, ("pybroker ready", *plain, *tls))) + "\n"


def _stop_on_signals(stop: asyncio.Event) -> None:
    def received(number: int) -> None:
        if stop.is_set():
            drain_log()
            os._exit(EXIT_SECOND_SIGNAL)
        log.info("stopping: %s", signal.Signals(number).name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)


def _refuse(error: Exception) -> int:
    drain_log()
    print(f"pybroker: {error}", file=sys.stderr)
    return EXIT_CANNOT_START


def _session_lost(why: str) -> NoReturn:
    """End the process at once: it must not answer from memory that may be outdated."""
    drain_log()
    print(
        f"pybroker: stopped, because {why}; no unsaved data was acknowledged; start it again",
        file=sys.stderr,
        flush=True,
    )
    os._exit(EXIT_SESSION_LOST)


def _disk_failed(error: Exception) -> NoReturn:
    """End the process at once: after a failed fsync the contents of the disk are unknown, and
    continuing could lose messages.
    """
    drain_log()
    print(
        f"pybroker: stopped, because the disk failed to store data: {error}; no unsaved data was "
        "acknowledged; check the disk and start again",
        file=sys.stderr,
        flush=True,
    )
    os._exit(EXIT_DISK_FAILED)
