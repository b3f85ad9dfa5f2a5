"""Prints a report as text or JSON; the exit code is 1 if a check found an error."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pybroker.base.colours import GREEN, PLAIN, RED, YELLOW, coloured
from pybroker.base.configuration.config import BrokerConfig
from pybroker.doctor.disk import check_data_directory, check_free_space, check_sync
from pybroker.doctor.finding import Finding, Level
from pybroker.doctor.machine import check_clock, check_descriptors, check_memory, check_ports
from pybroker.doctor.running import Holder, holder_of
from pybroker.doctor.software import check_java, check_packages, check_python, check_rival

_COLOURS: Final = {
    Level.OK: GREEN,
    Level.ABSENT: PLAIN,
    Level.WARNING: YELLOW,
    Level.ERROR: RED,
}
_STOPS_THE_BROKER: Final = 1


def report(config: BrokerConfig | ValueError, data_dir: Path, as_json: bool) -> int:
    """The exit code: 1 if something prevents the broker from starting or from keeping its promises.

    `config` is the configuration that `pybroker standalone` would use, or the reason why it has
    none.
    """
    holder = holder_of(data_dir)
    findings = list(examine(config, data_dir, holder))
    print(_as_json(findings) if as_json else _as_text(findings, holder is not None))
    return _STOPS_THE_BROKER if _count(findings, Level.ERROR) else 0


def examine(
    config: BrokerConfig | ValueError, data_dir: Path, holder: Holder | None = None
) -> Iterator[Finding]:
    """`holder`: the process that uses the data directory."""
    if isinstance(config, ValueError):
        yield Finding("configuration", Level.ERROR, str(config), "correct the setting it names")
        config = BrokerConfig()
    yield check_python()
    yield from check_rival()
    yield from check_packages(config)
    yield check_data_directory(data_dir, holder)
    checks: Sequence[Callable[[Path], Finding]] = (check_free_space, check_sync, check_clock)
    for check in checks:
        yield check(data_dir)
    yield from check_ports(config, holder)
    yield check_descriptors(config)
    yield check_memory()
    yield check_java()
    if config.metadata_store_url:  # imported on use: a broker that is alone does not load it
        from pybroker.doctor.cluster import check_cluster

        yield from check_cluster(config)


def _count(findings: Sequence[Finding], level: Level) -> int:
    return sum(finding.level is level for finding in findings)


def _as_json(findings: Sequence[Finding]) -> str:
    rows = [
        {"check": each.check, "level": each.level.value, "found": each.found, "advice": each.advice}
        for each in findings
    ]
    errors, warnings = _count(findings, Level.ERROR), _count(findings, Level.WARNING)
    return json.dumps({"errors": errors, "warnings": warnings, "checks": rows}, indent=2)


def _as_text(findings: Sequence[Finding], runs: bool) -> str:
    width = max(len(each.check) for each in findings)
    lines = []
    for each in findings:
        level = coloured(f"{each.level.value:<7}", _COLOURS[each.level], sys.stdout)
        lines.append(f"{level}  {each.check:<{width}}  {each.found}")
        if each.advice:
            lines.append(f"{'':7}  {'':{width}}  → {each.advice}")
    return "\n".join([*lines, "", _summary(findings, runs)])


def _summary(findings: Sequence[Finding], runs: bool) -> str:
    errors, warnings = _count(findings, Level.ERROR), _count(findings, Level.WARNING)
    if errors:
        return f"A broker would not start, or not be safe, here: {_of(errors, 'error')}."
    verb = "runs" if runs else "can run"
    if warnings:
        return f"A broker {verb} here, with {_of(warnings, 'warning')}."
    return f"A broker {verb} here."


def _of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
