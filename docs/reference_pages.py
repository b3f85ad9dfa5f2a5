"""Writes the reference pages, all of which come from the code."""

import argparse
import importlib
import json
import os
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import pybroker.base.configuration.config as config_module
import pybroker.testing
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.configuration.config_file import camel_case
from pybroker.checking.main import _parser as check_parser
from pybroker.commands.admin.main import GROUPS, group_parser
from pybroker.commands.admin.main import _parser as admin_parser
from pybroker.commands.faults.main import _parser as faults_parser
from pybroker.commands.messages.main import parser as messages_parser
from pybroker.commands.transactions.main import _parser as transactions_parser
from pybroker.demo.quick import demo_parser
from pybroker.eos_check.main import _parser as eos_check_parser
from pybroker.handing_over.main import _parser as hand_over_parser
from pybroker.moving.main import _parser as move_parser
from pybroker.process.cli import _parser as cli_parser
from pybroker.simulation.main import _parser as simulate_parser

_API: dict[str, tuple[Any, ...]] = {
    "client": (
        "pybroker.client",
        "The client for threads. Its names are those of the official Python client, and it adds "
        "transactions. It works with Apache Pulsar as well.",
    ),
    "aio": (
        "pybroker.client.aio",
        "The same client for asyncio. Options, choices, messages and errors are those of "
        ":doc:`pybroker.client <client>`.",
        ("Client", "Consumer", "Producer", "Reader", "Transaction", "TransactionGroup"),
    ),
    "database": (
        "pybroker.client.database",
        "One commit with a database: :doc:`the guide <../database>`. pybroker.client.database.aio "
        "has the same functions for asyncio.",
        (
            "transaction",
            "recover",
            "new_identity",
            "Recovered",
            "CommitPending",
            "DatabaseOutcomeUnknown",
        ),
    ),
    "spark": (
        "pybroker.spark",
        "Exactly-once pipelines for PySpark: :doc:`the guide <../exactly-once-spark>`.",
    ),
    "simulation": (
        "pybroker.simulation",
        "Your asyncio code under a virtual clock, with faults: :doc:`the guide <../testing>`.",
        (
            "simulate",
            "run_seed",
            "Simulation",
            "Record",
            "Outcome",
            "Violation",
            "Fault",
            "Weather",
            "BrokenPromise",
            "ScenarioError",
            "NotSimulated",
            "World",
            "SimulatedBroker",
            "SimulatedDisk",
        ),
    ),
    "testing": ("pybroker.testing", "A broker in your tests: :doc:`the guide <../testing>`."),
}
_DIRECTIVES = {
    "Classes": ("autoclass",),
    "Functions": ("autofunction",),
    "Choices": ("autoclass", ":no-inherited-members:"),
    "Errors": ("autoexception", ":no-members:", ":no-inherited-members:"),
}
_SETTING = re.compile(r"    (\w+): [^=]+ = .+?(?:  # (.+))?")


def write_reference(folder: Path) -> None:
    os.environ["COLUMNS"] = "90"  # for argparse, whatever the terminal
    folder.mkdir(exist_ok=True)
    from_code = {
        "settings.md": settings(),
        "commands.md": commands(),
        "admin-routes.md": admin_routes(),
    }
    for name, text in {**python_api(), **from_code}.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def python_api() -> dict[str, str]:
    """A page for each public module, with all that its `__all__` names."""
    pages = {name: _api_page(*row) for name, row in _API.items()}
    return {f"{name}.rst": text for name, text in pages.items()}


def _api_page(module: str, introduction: str, only: tuple[str, ...] = ()) -> str:
    public = importlib.import_module(module)
    groups: dict[str, list[str]] = {name: [] for name in _DIRECTIVES}
    for name in only or public.__all__:
        groups[_group(getattr(public, name))].append(name)
    lines = [module, "=" * len(module), "", f".. py:module:: {module}", "", introduction, ""]
    for group, names in groups.items():
        directive, *options = _DIRECTIVES[group]
        if names:
            lines += [group, "-" * len(group), ""]
        for name in names:
            lines += [f".. {directive}:: {module}.{name}", *(f"   {each}" for each in options), ""]
    return "\n".join(lines)


def _group(thing: object) -> str:
    if not isinstance(thing, type):
        return "Functions"
    if issubclass(thing, BaseException):
        return "Errors"
    return "Choices" if issubclass(thing, Enum) else "Classes"


def settings() -> str:
    """Every key, with the comments beside it in pybroker/base/configuration/config.py."""
    defaults = {field.name: field.default for field in fields(BrokerConfig)}
    lines = [
        "# All settings",
        "",
        "Keys of broker.conf and pybroker.toml, with their defaults.",
        "",
    ]
    in_table = False
    for line in Path(config_module.__file__).read_text().splitlines():
        setting = _SETTING.fullmatch(line)
        if setting is not None:
            if not in_table:
                lines += ["", "| key | default | |", "|---|---|---|"]
            in_table = True
            name, comment = setting[1], setting[2] or ""
            lines.append(
                f"| `{camel_case(name)}` | {_default(defaults[name])} | {_cell(comment)} |"
            )
        elif line.startswith("    # "):
            lines += ["", line.strip("# ")] if in_table else [line.strip("# ")]
            in_table = False
        elif line.startswith("    @property"):
            break
    return "\n".join(lines) + "\n"


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float) and value != "":
        return str(value)
    return ""


def commands() -> str:
    lines = ["# All commands", "", "What each command prints with `--help`.", ""]
    for parser in _parsers():
        lines += _help(parser)
        for name, command in _subcommands(parser):
            lines += [f"### {parser.prog} {name}", "", *_fenced(command)]
    lines += ["## pybroker admin", "", *_fenced(admin_parser())]
    for group in GROUPS:
        lines += [f"### pybroker admin {group}", "", "| command | |", "|---|---|"]
        for name, command in sorted(_subcommands(group_parser(group))):
            lines.append(f"| `{_usage(command, name)}` | {_cell(command.description or '')} |")
        lines.append("")
    return "\n".join(lines) + "\n"


def _parsers() -> Iterator[argparse.ArgumentParser]:
    whole = cli_parser()
    own = dict(_subcommands(whole))
    for name in ("standalone", "broker", "doctor"):
        yield own[name]
    yield from (demo_parser(), check_parser(), move_parser(), hand_over_parser())
    yield from (eos_check_parser(), simulate_parser())
    for name in ("tokens", "certificates"):
        yield own[name]
    yield from (command for _, command in _subcommands(messages_parser()))
    yield transactions_parser()
    yield faults_parser()


def _help(parser: argparse.ArgumentParser) -> list[str]:
    return [f"## {parser.prog}", "", *_fenced(parser)]


def _fenced(parser: argparse.ArgumentParser) -> list[str]:
    return ["```", parser.format_help().rstrip(), "```", ""]


def _usage(parser: argparse.ArgumentParser, name: str) -> str:
    words = " ".join(parser.format_usage().split()).partition(f" {name}")[2]
    return f"{name}{words.replace(' [-h]', '')}".replace("|", "\\|")


def _subcommands(parser: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return list(action.choices.items())
    return []


def admin_routes() -> str:
    """From the description that a broker serves."""
    with (
        pybroker.testing.broker(http=True) as broker,
        urllib.request.urlopen(f"{broker.admin_url}/admin/openapi.json") as answer,
    ):
        description = json.load(answer)
    by_tag: dict[str, list[str]] = {}
    for path, operations in description["paths"].items():
        for verb, operation in operations.items():
            (tag, *_) = operation.get("tags") or ["other"]
            text = operation.get("summary") or operation.get("description") or ""
            row = f"| {verb.upper()} | `{path}` | {_cell(text)} |"
            by_tag.setdefault(tag, []).append(row)
    lines = [
        "# Admin routes",
        "",
        "All routes of the HTTP port. The complete description, with parameters, bodies and",
        "answers, is the OpenAPI document that a broker serves at `/admin/openapi.json`.",
        "",
    ]
    for tag, rows in sorted(by_tag.items()):
        lines += [f"## {tag}", "", "| | path | |", "|---|---|---|", *rows, ""]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
