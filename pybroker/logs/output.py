"""Where lines go: one handler of the root logger, which holds lines back that come too often.

Lines of one kind (the same sentence of the same logger; of `audit`, the same sort from the same
address) are written as long as a bucket lasts; what is left out is counted, and the count is said
with the next line of any kind. So whoever makes the broker log does not fill its disk. `debug` and
`access` are written in full: somebody asked for them.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Final

from pybroker.logs.levels import Levels
from pybroker.logs.line_writer import LineWriter
from pybroker.logs.lines import TEXT, formatter

KINDS: Final = 1000  # that are counted at a time
EARLY_RECORDS: Final = 1000  # kept until it is known how they are to look
_QUIET_S: Final = 10.0  # after which a kind's count is said
_NEVER_LIMITED: Final = ("pybroker.access",)


@dataclass(frozen=True, slots=True)
class Bucket:
    """So many lines of a kind at once, and so many a second after that."""

    at_once: int
    per_second: float


USUAL: Final = Bucket(20, 1.0)


@dataclass(slots=True)
class _Kind:
    name: str  # of the logger
    level: int
    what: str
    left: float
    at_s: float
    unsaid: int = 0


class LogOutput(logging.StreamHandler[IO[str] | LineWriter]):
    """Takes lines from `begin` on; what was said before that is written then."""

    def __init__(
        self, stream: IO[str] | LineWriter, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(stream)
        self._now_s = now_s
        self._kinds: OrderedDict[tuple[str, str], _Kind] = OrderedDict()
        self._early: list[logging.LogRecord] | None = []

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

    def close(self) -> None:
        """Say what was left out so far."""
        if self._early is None:
            for unsaid in self._unsaid(float("inf")):
                super().emit(unsaid)
        self.drain()
        super().close()

    def drain(self) -> None:
        """What was said is written, if somebody reads it."""
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
            if kind.unsaid == 1:  # as an example
                kind.what = getattr(record, "kind", "") or record.getMessage()
            return False
        kind.left -= 1
        return True

    def _unsaid(self, before_s: float) -> Iterator[logging.LogRecord]:
        """Of kinds that have been quiet since, which are forgotten. The quietest stand first."""
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
                    "%d more lines like this were left out: %s",
                    (kind.unsaid, kind.what[:200]),
                    None,
                )


def log_to(stream: IO[str] | LineWriter) -> LogOutput:
    """All loggers of this process, at the usual levels for now; `begin` writes the lines."""
    output = LogOutput(stream)
    logging.getLogger().handlers[:] = [output]
    Levels().apply()
    return output


def log_as(output: LogOutput, levels: Levels, lines: str = TEXT) -> None:
    levels.apply()
    output.begin(lines)


def drain_log() -> None:
    """Before this process ends, or says something by another way."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogOutput):
            handler.drain()
