"""The demo's output: progress while it runs, then a verdict on counted claims."""

import os
import re
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TextIO

_SHOWN_LINES: Final = 20
_SHOWN_COLUMNS: Final = 300
_SHOWN_BYTES: Final = 64 * 1024
_JVM_FRAME: Final = re.compile(r"\s+(at [\w.$/<>]+\(|\.\.\. \d+ more)")

_started_at = time.monotonic()


def say(text: str) -> None:
    print(f"{elapsed_s():7.1f} s  {text}", flush=True)


def headline(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def elapsed_s() -> float:
    return time.monotonic() - _started_at


class Claim(NamedTuple):
    holds: bool
    text: str
    log: Path | None  # of the process whose work the claim is about


@dataclass(slots=True)
class Verdict:
    """Claims, each with the counts that support it.

    A claim is about the process that writes to `log`, unless it names another process's log.
    """

    log: Path | None = None
    claims: list[Claim] = field(default_factory=list)

    def claim(self, holds: bool, text: str, log: Path | None = None) -> None:
        self.claims.append(Claim(holds, text, log or self.log))

    @property
    def holds(self) -> bool:
        return bool(self.claims) and all(claim.holds for claim in self.claims)

    def print(self) -> None:
        headline("Verdict, from the counts")
        for claim in self.claims:
            print(f"  {'ok  ' if claim.holds else 'FAIL'}  {claim.text}")
        self.print_logs()
        failed = sum(not claim.holds for claim in self.claims)
        summary = "EXACTLY ONCE" if not failed else f"NOT EXACTLY ONCE: {failed} claims failed"
        print(f"\n{summary} ({elapsed_s():.0f} s)", flush=True)

    def print_logs(self) -> None:
        """The ends of the logs of failed claims, each once."""
        for log in dict.fromkeys(claim.log for claim in self.claims if not claim.holds):
            if log is not None:
                print_end(log)


def print_end(log: Path, stream: TextIO | None = None) -> None:
    lines = last_lines(log)
    title = f"The end of {log}:" if lines else f"Nothing is in {log}"
    print("\n" + "\n  | ".join((title, *lines)), file=stream)


def last_lines(log: Path) -> list[str]:
    """At most 20, long ones cut; none if the process wrote nothing. The frames of a JVM's stack
    traces are left out: there are dozens behind each cause.
    """
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _SHOWN_BYTES), os.SEEK_SET)
        text = file.read(_SHOWN_BYTES).decode(errors="replace")
    told = (line for line in text.splitlines() if line.strip() and not _JVM_FRAME.match(line))
    return [line.rstrip()[:_SHOWN_COLUMNS] for line in deque(told, _SHOWN_LINES)]
