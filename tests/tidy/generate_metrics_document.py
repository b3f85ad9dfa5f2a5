"""Writes the table of docs/metrics.md. The text above it is written by hand, and kept."""

from pathlib import Path
from typing import Final

from pybroker.admin.metrics.table import METRICS

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs/metrics.md"
_TABLE: Final = "## All metrics\n"


def document() -> str:
    """The document with a new table."""
    by_hand, heading, _ = DOCUMENT.read_text().partition(_TABLE)
    lines = [
        "| metric | type | labels | what it is | where it comes from |",
        "|---|---|---|---|---|",
        *(
            f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.help} | {m.source} |"
            for m in METRICS.values()
        ),
    ]
    return f"{by_hand}{heading or _TABLE}\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
