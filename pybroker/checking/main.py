"""`pybroker check DIR`: prints what is damaged, what is lost as a result, and what to do."""

import argparse
import asyncio
import errno
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.findings import Finding
from pybroker.base.arguments import Parser
from pybroker.base.configuration.config import BrokerConfig
from pybroker.checking.directory import Report, check
from pybroker.checking.repair import repair

EXIT_DAMAGED: Final = 1
EXIT_NOT_CHECKED: Final = 2
_READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    config = BrokerConfig()
    if options.config is not None:
        from pybroker.base.configuration.config_file import load_config

        try:
            config = load_config(options.config)
        except (ValueError, OSError) as error:
            print(f"pybroker: {error}", file=sys.stderr)
            return EXIT_NOT_CHECKED
    # The broker that checks accepts no connections.
    config = replace(config, authentication_enabled=False, authorization_enabled=False)
    return run(options.directory, config, options.json, options.repair)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pybroker check",
        description="Check a data directory while no broker uses it: all checksums, and the "
        "consistency of topics, cursors and transactions. Nothing is changed. Exit code 0: intact, "
        "1: damaged, 2: not checked or not repaired.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="a broker's data directory")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="move aside what keeps a broker from starting; nothing is deleted",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the broker's configuration")
    return parser


def run(path: Path, config: BrokerConfig, as_json: bool, repairs: bool) -> int:
    """The exit code. 0: intact; 1: damaged; 2: not checked, or not repaired."""
    done: list[str] = []
    refused = ""  # the reason why nothing was repaired
    before: list[Finding] = []  # findings before the repair
    try:
        report = asyncio.run(check(path, config))
        if repairs:
            try:
                done = repair(path)
            except OSError as error:
                if error.errno not in _READ_ONLY:
                    raise
                refused = (
                    f"not repaired: {error.filename or path} cannot be written "
                    f"({error.strerror}): make {path} writable for this user, or repair a copy"
                )
        if done:
            before = report.findings
            report = asyncio.run(check(path, config))
    except PermissionError as error:
        print(
            f"pybroker: {error.filename or path} cannot be read ({error.strerror}): run this as "
            "the broker's user",
            file=sys.stderr,
        )
        return EXIT_NOT_CHECKED
    except (ManagedLedgerError, OSError) as error:
        print(f"pybroker: {error}", file=sys.stderr)
        return EXIT_NOT_CHECKED
    repaired = repairs and not refused
    text = _json(report, done, before) if as_json else _text(report, done, before, repaired)
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader is gone
        pass
    except OSError as error:  # this must not look like damage
        print(f"pybroker: the report cannot be printed: {error}", file=sys.stderr)
        return EXIT_NOT_CHECKED
    if refused:
        print(f"pybroker: {refused}", file=sys.stderr)
        return EXIT_NOT_CHECKED
    return EXIT_DAMAGED if report.damage else 0


def _json(report: Report, done: list[str], before: list[Finding]) -> str:
    body = {
        "directory": str(report.path),
        "damaged": bool(report.damage),
        "ledgers": report.ledgers,
        "logs": report.logs,
        "topics": report.topics,
        "transactions": report.transactions,
        "repaired": done,
        "before": list(map(_object, before)),
        "findings": list(map(_object, report.findings)),
    }
    return json.dumps(body, indent=2)


def _object(finding: Finding) -> dict[str, object]:
    return {
        "where": finding.where,
        "what": finding.what,
        "lost": finding.lost,
        "advice": finding.advice,
        "damage": finding.is_damage,
    }


def _text(report: Report, done: list[str], before: list[Finding], repairs: bool) -> str:
    lines = []
    for finding in before:
        if finding.is_damage:
            lines += _described(finding._replace(advice=""))
    lines += (f"repaired: {each}" for each in done)
    if repairs and not done:
        lines.append("there was nothing to repair")
    for finding in report.findings:
        lines += _described(finding)
    counted = f"{report.ledgers} ledgers, {report.logs} logs, {report.topics} topics"
    lines.append(f"checked {report.path}: {counted}, {report.transactions} transactions")
    damaged = len(report.damage)
    lines.append(
        f"DAMAGED in {damaged} place{'s' * (damaged > 1)}" if damaged else _whole(report, before)
    )
    return "\n".join(lines)


def _whole(report: Report, before: list[Finding]) -> str:
    if any(each.lost for each in before):
        return "a broker can start again, without the lost data"
    if report.findings:
        return "no certain damage; the notes list what may be damage"
    return "intact: nothing is damaged"


def _described(finding: Finding) -> list[str]:
    lines = [f"{'DAMAGE' if finding.is_damage else 'note  '}  {finding.where}: {finding.what}"]
    if finding.lost:
        lines.append(f"        lost: {finding.lost}")
    if finding.advice:
        lines.append(f"        {finding.advice}")
    return lines
