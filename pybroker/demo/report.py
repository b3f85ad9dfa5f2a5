"""The demo's output: progress while it runs, then a verdict on counted claims."""

import time
from dataclasses import dataclass, field

_started_at = time.monotonic()


def say(text: str) -> None:
    print(f"{elapsed_s():7.1f} s  {text}", flush=True)


def headline(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def elapsed_s() -> float:
    return time.monotonic() - _started_at


@dataclass(slots=True)
class Verdict:
    """Claims, each with the counts that support it."""

    claims: list[tuple[bool, str]] = field(default_factory=list)

    def claim(self, holds: bool, text: str) -> None:
        self.claims.append((holds, text))

    @property
    def holds(self) -> bool:
        return bool(self.claims) and all(holds for holds, _ in self.claims)

    def print(self) -> None:
        headline("Verdict, from the counts")
        for holds, text in self.claims:
            print(f"  {'ok  ' if holds else 'FAIL'}  {text}")
        failed = sum(not holds for holds, _ in self.claims)
        summary = "EXACTLY ONCE" if not failed else f"NOT EXACTLY ONCE: {failed} claims failed"
        print(f"\n{summary} ({elapsed_s():.0f} s)", flush=True)
