"""Counts of what many seeds did to the broker: in memory, in a file, as a table."""

import fcntl
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sim_seed import Report


@dataclass(slots=True)
class Chunk:
    """The results of some seeds."""

    seeds: int = 0
    failures: list[str] = field(default_factory=list)
    counts: "Counter[str]" = field(default_factory=Counter)


def counts_of(report: Report) -> dict[str, int]:
    return {
        **report.counts,
        **{f"seeds with {name}": 1 for name in report.features},
        "transactions": report.txns,
        "messages received": report.messages,
        "virtual seconds": round(report.virtual_s),
        "steps": report.steps,
    }


def save(path: Path, chunk: Chunk) -> None:
    """Adds the counts to the file. Several runs may do so at the same time. A run that is killed
    does not damage the file.
    """
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = added_up([path] if path.exists() else [])
        known.update(chunk.counts)
        known.update({"seeds": chunk.seeds, "seeds that failed": len(chunk.failures)})
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")
        new.replace(path)


def added_up(paths: Sequence[Path]) -> "Counter[str]":
    total: Counter[str] = Counter()
    for path in paths:
        total.update(json.loads(path.read_text()))
    return total


def table(paths: Sequence[Path]) -> str:
    """The sum of saved counts, as Markdown."""
    rows = [f"| {what} | {count:,} |" for what, count in sorted(added_up(paths).items())]
    return "\n".join(("| what | how often |", "|---|---|", *rows))
