"""Parses a command line, runs the command, and prints the answer."""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from pybroker.base.arguments import Parser, did_you_mean
from pybroker.commands.admin.access import add_access, rest_of
from pybroker.commands.admin.command import Command
from pybroker.commands.admin.completion import SHELLS, script
from pybroker.commands.admin.grammar import add_arguments
from pybroker.commands.admin.output import shown
from pybroker.commands.admin.rest import RestError
from pybroker.commands.admin.tables import brokers, namespaces, others, scalable, topics
from pybroker.commands.admin.tables.summaries import summary
from pybroker.commands.terminal import for_reader, reader_left

GROUPS: Final[dict[str, tuple[Command, ...]]] = {
    "brokers": brokers.BROKERS,
    "broker-stats": brokers.BROKER_STATS,
    "bookies": brokers.BOOKIES,
    "clusters": brokers.CLUSTERS,
    "ns-isolation-policy": brokers.ISOLATION,
    "resourcegroups": brokers.RESOURCE_GROUPS,
    "resource-quotas": brokers.RESOURCE_QUOTAS,
    "tenants": brokers.TENANTS,
    "namespaces": namespaces.NAMESPACES,
    "topics": topics.TOPICS,
    "scalable-topics": scalable.SCALABLE,
    "topicPolicies": topics.TOPIC_POLICIES,
    "persistent": topics.PERSISTENT,
    "non-persistent": topics.NON_PERSISTENT,
    "schemas": others.SCHEMAS,
    "transactions": others.TRANSACTIONS,
    "kafka-groups": others.KAFKA_GROUPS,
    "definitions": others.DEFINITIONS,
}
_FORMATS: Final = ("json", "table")
_GENERAL: Final = "general "  # before the names of options that every command takes
_EXIT_FAILED: Final = 1
_EXIT_USAGE: Final = 2


def main(arguments: list[str]) -> int:
    """Runs one command and returns the exit code."""
    try:
        code = run(_parser().parse_args(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        return reader_left()
    return code


def _parser() -> argparse.ArgumentParser:
    """Parses the options before the group. The rest is parsed when the group is known."""
    parser = Parser(prog="pybroker admin", allow_abbrev=False)
    add_access(parser)
    add = parser.add_argument
    add("--format", choices=_FORMATS, default="json")
    add("--completion", choices=SHELLS, help="print the shell completion script and exit")
    add("group", nargs="?", metavar="GROUP", help=", ".join(GROUPS))
    add("words", nargs=argparse.REMAINDER, metavar="COMMAND …", help="GROUP --help lists them")
    return parser


def run(options: argparse.Namespace) -> int:
    if options.completion:
        print(script(options.completion, GROUPS))
        return 0
    if options.group not in GROUPS:
        meant = did_you_mean(options.group or "", GROUPS)
        print(f"pybroker admin: choose a group: {', '.join(GROUPS)}{meant}", file=sys.stderr)
        return _EXIT_USAGE
    chosen = group_parser(options.group, options.words).parse_args(options.words)
    command: Command = chosen.command_of_group
    _take_general(options, chosen)
    try:
        text = shown(command.execute(rest_of(options), chosen), options.format == "table")
    except (RestError, ValueError, OSError) as error:
        print(for_reader(sys.stderr, f"pybroker admin: {error}"), file=sys.stderr)
        return _EXIT_FAILED
    if text:
        print(for_reader(sys.stdout, text))
    return 0


def _add_general(parser: argparse.ArgumentParser) -> None:
    """Adds the options that may also stand before the group."""
    group = parser.add_argument_group("broker, credentials and output")
    add_access(group, again=True)
    group.add_argument("--format", choices=_FORMATS, default=argparse.SUPPRESS)
    for action in group._group_actions:
        if action.metavar is None and action.nargs is None and action.choices is None:
            action.metavar = action.dest.upper()
        action.dest = _GENERAL + action.dest  # a command may have one of the same name


def _take_general(options: argparse.Namespace, chosen: argparse.Namespace) -> None:
    for name, value in vars(chosen).items():
        if name.startswith(_GENERAL):
            setattr(options, name.removeprefix(_GENERAL), value)


def group_parser(group: str, words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Only a command that is among `words` gets the general options: there are many commands."""
    parser = Parser(prog=f"pybroker admin {group}", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in sorted(GROUPS[group], key=lambda found: found.name):
        said = summary(group, command.name)
        added = commands.add_parser(
            command.name,
            help=said,
            description=said,
            allow_abbrev=False,
            conflict_handler="resolve",  # the command's own option wins
        )
        if command.name in words:
            _add_general(added)
        add_arguments(added, command.arguments)
        added.set_defaults(command_of_group=command)
    return parser
