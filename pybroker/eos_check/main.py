"""`pybroker eos-check -- COMMAND`: runs the command with a crash at each step, and judges it."""

import argparse
import contextlib
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from pybroker.base import verdict_files
from pybroker.base.arguments import Parser
from pybroker.base.names import TopicName
from pybroker.client import PulsarException
from pybroker.demo.progress import ProgressBar
from pybroker.eos_check.exploration import TIME_LIMIT_S, Exploration
from pybroker.eos_check.marked_processes import Undertaker
from pybroker.eos_check.run_result import CannotRun
from pybroker.eos_check.settings import KAFKA_BOOTSTRAP, Settings
from pybroker.eos_check.topics import HalfPublished, OutputIsTooLarge
from pybroker.eos_check.verdict import TOOL, report

EXIT_NOT_JUDGED: Final = 2
EXIT_INTERRUPTED: Final = 130
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEFAULTS: Final = Settings(())
_DESCRIPTION: Final = """\
Check whether a pipeline is exactly once. Run COMMAND against a new broker, crash the pipeline or
the broker at each step of the protocol, restart it, and compare the output with that of a run
without faults.
"""
_EPILOG: Final = """\
COMMAND reads messages of a topic and writes to others until it is killed, or exits with code 0 when
there are none left. Placeholders in it: {service_url} {admin_url} {input} {output} {output2}
{kafka_bootstrap} {directory} (files there survive a crash within one run). The environment has
PULSAR_SERVICE_URL, PULSAR_ADMIN_URL, EOS_INPUT, EOS_OUTPUT, EOS_OUTPUTS, EOS_DIRECTORY, with
--kafka KAFKA_BOOTSTRAP_SERVERS, and JAVA_TOOL_OPTIONS, with which a JVM starts faster, unless you
have set it.

Exit code 0: exactly once, and each kind of crash was tried; 1: not exactly once; 2: it could not be
judged. A kind is a crash of the pipeline or of the broker, before or after a command of one name
about one topic.

  pybroker eos-check -- python pipeline.py {service_url} {input} {output}
"""


def main(words: Sequence[str]) -> int:
    """Runs the check and returns the exit code."""
    mine, command = _split(words)
    options, others = _parser().parse_known_args(mine)
    if others and not command and not others[0].startswith("-"):
        print(
            f"pybroker: write -- before the pipeline's command: -- {shlex.join(others)}",
            file=sys.stderr,
        )
        return EXIT_NOT_JUDGED
    if others:
        _parser().error(f"unrecognized arguments: {' '.join(others)}")
    if not command or not command[0]:
        print("pybroker: name the pipeline's command after --", file=sys.stderr)
        return EXIT_NOT_JUDGED
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupted)
    try:
        settings = _settings(options, command)
        with Undertaker() as undertaker:
            return run(replace(settings, directory=undertaker.directory), options)
    except (
        CannotRun,
        HalfPublished,
        OutputIsTooLarge,
        PulsarException,
        RuntimeError,
        OSError,
    ) as error:
        print(f"pybroker: cannot judge: {error}", file=sys.stderr)
        _write_reason(options, shlex.join(command), str(error))
        return EXIT_NOT_JUDGED
    except KeyboardInterrupt:
        print("pybroker: interrupted; all processes were stopped", file=sys.stderr)
        return EXIT_INTERRUPTED


def _write_reason(options: argparse.Namespace, name: str, reason: str) -> None:
    title = "could not be judged"
    verdict = verdict_files.Verdict(
        TOOL, name, title, EXIT_NOT_JUDGED, findings=[reason], text=reason
    )
    with contextlib.suppress(OSError):  # maybe this is the reason
        verdict_files.write(options, verdict)


def _interrupted(*_: object) -> None:
    """Ends all processes, which takes a moment. Another Ctrl-C would leave some running, so it is
    ignored.

    A handler in Python would not suffice: the interpreter removes handlers while it exits.
    """
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    at = list(words).index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pybroker eos-check",
        usage="pybroker eos-check [options] -- COMMAND [ARGUMENT...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--input", metavar="TOPIC", default=_DEFAULTS.input, help="default: %(default)s")
    add(
        "--output",
        metavar="TOPIC",
        action="append",
        help="a topic whose messages are judged; repeatable; default: eos-output",
    )
    add(
        "--messages",
        type=_number(1, 10_000),
        default=_DEFAULTS.messages,
        metavar="N",
        help="input messages; default: %(default)s",
    )
    add("--keys", type=_number(1, 10_000), default=3, metavar="N", help="their keys; default: 3")
    add(
        "--payload",
        default=_DEFAULTS.payload,
        metavar="TEXT",
        help="template of each input message with {id}, {key} and {n}; default: %(default)s",
    )
    add(
        "--identity",
        type=_pattern,
        metavar="REGEX",
        help="compare only the part of each message that this (or its first group) matches",
    )
    add(
        "--ordered",
        action="store_true",
        help="also require that the messages of each key stay in order",
    )
    add(
        "--rows",
        type=_command,
        default=(),
        metavar="COMMAND",
        help="a command, with the same placeholders, that prints rows of a database, one a line: "
        "each must be there once, as messages must",
    )
    add(
        "--judge",
        type=_command,
        default=(),
        metavar="COMMAND",
        help="judge with this command: it reads input and output as JSON, and exits with 0 "
        "if all is well",
    )
    add(
        "--kafka",
        action="store_true",
        help="the pipeline has a Kafka client; not needed with {kafka_bootstrap} in the command",
    )
    add("--config", default="", metavar="FILE", help="configuration file of the broker")
    add(
        "--time-limit",
        type=_seconds,
        metavar="SECONDS",
        help="start no run that would probably end later than this; default: "
        f"{TIME_LIMIT_S:g}, or longer until each kind of crash was tried",
    )
    add(
        "--quick",
        action="store_true",
        help="only one crash of each kind, and no pairs",
    )
    add(
        "--run-limit",
        type=_seconds,
        metavar="SECONDS",
        help="a run in which the pipeline has not caught up by then is stuck; default: 120 "
        "without faults, then ten times what those runs took, at least 60",
    )
    add(
        "--settle",
        type=_seconds,
        default=3.0,
        metavar="SECONDS",
        help="messages still missing after this long without a request are lost; default: 3, "
        "longer for a pipeline that pauses longer without faults",
    )
    add(
        "--pairs",
        type=_number(0, 10_000),
        default=20,
        metavar="N",
        help="most pairs of crashes to try; default: 20",
    )
    add(
        "--jobs",
        type=_number(1, 64),
        default=2,
        metavar="N",
        help="runs at the same time; default: 2",
    )
    add("--report", type=Path, metavar="FILE", help="write an HTML page with the verdict")
    verdict_files.add_options(parser)
    return parser


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and low <= int(text[:9]) <= high):
            raise argparse.ArgumentTypeError(f"{text[:40]} is not a number from {low} to {high}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.1 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not 0.1 to 86400 seconds")
    return value


def _command(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not a command: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise argparse.ArgumentTypeError(f"{text[:40]} does not exist, or cannot be executed")
    return words


def _pattern(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(text.encode())
    except re.error as error:
        raise argparse.ArgumentTypeError(
            f"{text[:40]} is not a regular expression: {error}"
        ) from None


def _settings(options: argparse.Namespace, command: Sequence[str]) -> Settings:
    """The settings from the options. Raises CannotRun and InvalidTopicName."""
    topics = [options.input, *(options.output or _DEFAULTS.outputs)]
    names = [TopicName.parse(topic) for topic in topics]
    if len(set(names)) < len(names):
        raise CannotRun(f"{', '.join(topics)}: each --input and --output must be another topic")
    for name in names:
        if not name.persistent:
            raise CannotRun(f"{name} stores nothing that could be judged: use persistent://")
    return Settings(
        command=tuple(command),
        input=options.input,
        outputs=tuple(options.output or _DEFAULTS.outputs),
        messages=options.messages,
        keys=options.keys,
        payload=options.payload,
        identity=options.identity,
        ordered=options.ordered,
        rows=options.rows,
        judge=options.judge,
        settle_s=options.settle,
        run_limit_s=options.run_limit,
        config=options.config,
        kafka=options.kafka or any(KAFKA_BOOTSTRAP in word for word in command),
    )


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Runs the check and returns the exit code. Raises CannotRun and OSError."""
    if options.report is not None:
        options.report.open("a").close()  # report an unwritable file before minutes of work
    verdict_files.require_writable(options)
    started_s = time.monotonic()
    bars: dict[tuple[str, int], ProgressBar] = {}

    def show(done: int, of: int, what: str) -> None:
        bars.setdefault((what, of), ProgressBar(what, of)).show(done)

    def say(text: str) -> None:
        for bar in bars.values():
            bar.interrupt()
        print(text, flush=True)

    exploration = Exploration(
        settings,
        time_limit_s=options.time_limit,
        once_each=options.quick,
        pairs_at_most=0 if options.quick else options.pairs,
        jobs=options.jobs,
        say=say,
        show=show,
    )
    explored = exploration.explore()
    for bar in bars.values():
        bar.interrupt()
    write = partial(verdict_files.write, options)
    return report(settings, explored, options.report, time.monotonic() - started_s, write)
