"""Checks a data directory while no broker uses it.

    files      all checksums of the snapshot, the journals and the ledgers' files
    logs       lists of ledgers and cursors against the stored ledgers
    a start    the broker's own recovery, on a copy in memory: each topic is loaded
    decisions  transactions on topics and subscriptions against their coordinators

If the first two find damage, the others are omitted: they would only report its consequences.
"""

import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.findings import Finding
from managed_ledger.inspection import Logs
from managed_ledger.storage.embedded.inspection import inspect
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.journal_writer import FOLDER as JOURNALS
from managed_ledger.storage.embedded.ledger_files import FOLDER
from managed_ledger.storage.embedded.overlay_disk import OverlayDisk
from managed_ledger.storage.embedded.snapshot import FOLDER as SNAPSHOT
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import PulsarError
from pybroker.base.names import TopicName
from pybroker.base.runtime import SystemClock
from pybroker.checking.decisions import Decisions
from pybroker.process.app import Broker

_BACKUP: Final = "Restore the data directory from a backup."
_TOPIC_SLASHES: Final = 3  # in the name of a topic's log; other logs have fewer
_FOLDERS: Final = (JOURNALS, SNAPSHOT, FOLDER)  # every broker creates these


@dataclass(slots=True)
class Report:
    path: Path
    findings: list[Finding] = field(default_factory=list)
    ledgers: int = 0
    logs: int = 0
    topics: int = 0
    transactions: int = 0  # seen on topics and subscriptions

    @property
    def damage(self) -> list[Finding]:
        return [each for each in self.findings if each.is_damage]


async def check(path: Path, config: BrokerConfig) -> Report:
    """Reads the whole directory, and changes nothing. Raises DirectoryInUse, NotADirectoryError,
    OSError.
    """
    _require_data(path)
    report, disk = Report(path), OverlayDisk(path)
    disk.hold()
    try:
        logs = _check_files(disk, report)
        if not report.damage:
            await _check_start(path, config, logs, report)
    finally:
        disk.release()
    return report


def _require_data(path: Path) -> None:
    """Any other folder would seem to be intact. Raises FileNotFoundError."""
    if path.is_dir() and not any((path / name).is_dir() for name in _FOLDERS):
        raise FileNotFoundError(
            f"{path} is not a broker's data directory: it has none of the folders "
            f"{', '.join(_FOLDERS)}. Check the path"
        )


def _check_files(disk: OverlayDisk, report: Report) -> Logs:
    replay, found = inspect(disk)
    counts = {each: state.tail.next_entry_id for each, state in replay.ledgers.items()}
    logs = Logs({key: stored.value for key, stored in replay.items.items()}, counts.get)
    of_logs = list(logs.check(list(counts))) if replay.complete else []
    report.findings = [_naming_the_log(each, logs) for each in found] + of_logs
    report.ledgers, report.logs = len(counts), len(logs.lists)
    return logs


def _naming_the_log(finding: Finding, logs: Logs) -> Finding:
    folder, _, number = finding.where.partition("/")
    if folder != FOLDER or not finding.lost:
        return finding
    name = logs.names.get(int(number))
    lost = f"{finding.lost}, of {name or 'no log'}"
    if name is None or _is_topic(name):
        return finding._replace(lost=lost)
    if name.count("/") >= _TOPIC_SLASHES:  # the log of a coordinator
        lost += ", without which no broker starts"
    return finding._replace(lost=lost, advice=_BACKUP)


def _is_topic(log: str) -> bool:
    """Whether the log contains messages: then subscriptions may skip what is damaged."""
    return log.count("/") >= _TOPIC_SLASHES and not TopicName.of_ledger(log).internal


async def _check_start(path: Path, config: BrokerConfig, logs: Logs, report: Report) -> None:
    fatal: list[Exception] = []
    backend = EmbeddedBackend(OverlayDisk(path), SystemClock(), "relaxed", on_fatal=fatal.append)
    broker = Broker(config, backend, SystemClock(), random.Random())
    with _Listener() as heard:
        try:
            await broker.start(None)
            try:
                await _check_topics(broker, logs, report)
            finally:
                await broker.stop()
        except (ManagedLedgerError, PulsarError, OSError, ValueError) as error:
            report.findings.append(Finding("the start", f"a broker does not start: {error}"))
    report.findings += (Finding("the start", str(each)) for each in fatal)
    report.findings += heard.findings()


async def _check_topics(broker: Broker, logs: Logs, report: Report) -> None:
    decisions = Decisions(broker.coordinators)
    for name, found in logs.lists.items():
        if not _is_topic(name) or found.deleted:
            continue
        topic = TopicName.of_ledger(name)
        report.topics += 1
        try:
            report.findings += await decisions.of_topic(broker.topics, topic)
        except (ManagedLedgerError, PulsarError) as error:
            report.findings.append(Finding(str(topic), f"cannot be loaded: {error}"))
        await broker.topics.unload(topic)
    report.transactions = decisions.transactions


class _Listener(logging.Handler):
    """Collects the errors that the broker logs while it starts."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self._lines[record.getMessage()] = None

    def findings(self) -> Iterator[Finding]:
        for line in self._lines:
            yield Finding("the start", line)

    def __enter__(self) -> "_Listener":
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)
