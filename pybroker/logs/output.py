"""The output of log lines: one handler of the root logger, which limits repeated lines.

Lines of one kind (the same message of the same logger; in `audit`, the same sort from the same
address) are written while a token bucket lasts. Further lines are counted, and the count is logged
with the next line of any kind once this kind has been quiet for a while. So clients cannot fill the
disk by making the broker log. `debug` and `access` are not limited: they were explicitly enabled.
"""

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Final

from pybroker.logs.levels import Levels
from pybroker.logs.line_writer import LineWriter
from pybroker.logs.lines import TEXT, formatter

KINDS: Final = 1000  # kinds of lines that are counted at a time
EARLY_RECORDS: Final = 1000  # records kept until the format is known
RECENT_LINES: Final = 500  # lines kept in memory for inspection
_LONGEST_KEPT: Final = 2000
_QUIET_S: Final = 10.0  # then the count of a kind is logged
_NEVER_LIMITED: Final = ("pybroker.access",)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket: `at_once` lines in a burst, then `per_second`."""

    at_once: int
    per_second: float


USUAL: Final = Bucket(20, 1.0)


@dataclass(slots=True)
class _Kind:
    name: str  # the logger's name
    level: int
    what: str
    left: float
    at_s: float
    unsaid: int = 0


class LogOutput(logging.StreamHandler[IO[str] | LineWriter]):
    """Writes lines from `begin` on. Earlier lines are kept, and written by `begin`."""

    def __init__(
        self, stream: IO[str] | LineWriter, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(stream)
        self._now_s = now_s
        self._kinds: OrderedDict[tuple[str, str], _Kind] = OrderedDict()
        self._early: list[logging.LogRecord] | None = []
        self._recent: deque[str] = deque(maxlen=RECENT_LINES)

    def begin(self, lines: str) -> None:
        """`lines` is one of the FORMATS."""
        self.setFormatter(formatter(lines))
        early, self._early = self._early or [], None
        for record in early:
            if logging.getLogger(record.name).isEnabledFor(record.levelno):
                self.handle(record)

    def emit(self, record: logging.LogRecord) -> None:
        if self._early is not None:
            if len(self._early) < EARLY_RECORDS:
                self._early.append(record)
            return
        now_s = self._now_s()
        for unsaid in self._unsaid(now_s - _QUIET_S):
            super().emit(unsaid)
        if self._takes(record, now_s):
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        self._recent.append(line[:_LONGEST_KEPT])
        return line

    def recent(self) -> list[str]:
        """The most recent lines, the newest at the end."""
        return list(self._recent)

    def close(self) -> None:
        """Log the counts of suppressed lines, and wait until all lines are written."""
        if self._early is None:
            for unsaid in self._unsaid(float("inf")):
                super().emit(unsaid)
        self.drain()
        super().close()

    def drain(self) -> None:
        """Wait until all lines are written, if the reader reads them."""
        if isinstance(self.stream, LineWriter):
            self.stream.drain()

    def _takes(self, record: logging.LogRecord, now_s: float) -> bool:
        if record.levelno <= logging.DEBUG or record.name in _NEVER_LIMITED:
            return True
        bucket: Bucket = getattr(record, "bucket", USUAL)
        what: str = getattr(record, "kind", "") or str(record.msg)
        key = record.name, what
        kind = self._kinds.pop(key, None)
        if kind is None:
            kind = _Kind(record.name, record.levelno, what, bucket.at_once, now_s)
        refilled = kind.left + (now_s - kind.at_s) * bucket.per_second
        kind.left, kind.at_s = min(refilled, bucket.at_once), now_s
        self._kinds[key] = kind
        if len(self._kinds) > KINDS:
            self._kinds.popitem(last=False)
        if kind.left < 1:
            kind.unsaid += 1
            if kind.unsaid == 1:  # keep the line as an example
                kind.what = getattr(record, "kind", "") or record.getMessage()
            return False
        kind.left -= 1
        return True

    def _unsaid(self, before_s: float) -> Iterator[logging.LogRecord]:
        """The records with the counts of kinds that have been quiet since `before_s`; drops these
        kinds.
        """
        while self._kinds:
            key, kind = next(iter(self._kinds.items()))
            if kind.at_s > before_s:
                return
            del self._kinds[key]
            if kind.unsaid:
                yield logging.LogRecord(
                    kind.name,
                    kind.level,
                    __file__,
                    0,
                    "%d similar lines were suppressed: %s",
                    (kind.unsaid, kind.what[:200]),
                    None,
                )


def log_to(stream: IO[str] | LineWriter) -> LogOutput:
    """Take over all loggers of this process, at default levels. `begin` starts writing."""
    output = LogOutput(stream)
    logging.getLogger().handlers[:] = [output]
    Levels().apply()
    return output


def log_as(output: LogOutput, levels: Levels, lines: str = TEXT) -> None:
    levels.apply()
    output.begin(lines)


def drain_log() -> None:
    """Wait until all lines are written. Call it before the process ends or writes to stderr
    itself.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogOutput):
            handler.drain()
