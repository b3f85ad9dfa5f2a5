"""The code blocks of README, docs and examples, and how each is run.

A comment above a block exempts it from the block runner:

    <!-- runs in tests/x/test_y.py -->    a separate test runs it
    <!-- shows output -->                 output, which readers do not type
    <!-- prints -->                       what the block before it printed; … stands for anything
    <!-- not run: docker -->              why not: left_out.py
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_FOLDERS: Final = (ROOT / "docs", ROOT / "docs/internals")
DOCUMENTS: Final = (
    ROOT / "README.md",
    *(document for folder in _FOLDERS for document in sorted(folder.glob("*.md"))),
)
EXAMPLES: Final = (ROOT / "examples/README.md", ROOT / "examples/simulated/README.md")
RUNS_IN: Final = re.compile(r"runs in (tests/[\w/]+\.py)")
OUTPUT: Final = "shows output"
PRINTED: Final = "prints"
NOT_RUN: Final = re.compile(r"not run: (.+)")

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"<!-- (.*) -->\n\Z")


@dataclass(frozen=True, slots=True)
class Block:
    document: str
    line: int
    language: str  # empty: shell input
    text: str
    declared: str  # empty: the block runner runs it

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: Path) -> list[Block]:
    text, found = document.read_text(), []
    for fence in _FENCE.finditer(text):
        before = text[: fence.start()]
        comment = _COMMENT.search(before)
        found.append(
            Block(
                str(document.relative_to(ROOT)),
                before.count("\n") + 1,
                fence[1],
                fence[2],
                comment[1] if comment else "",
            )
        )
    return found


def not_printed(shown: str, printed: str) -> str | None:
    """The first line that is shown and was not printed, or not in this place. Others between the
    lines, such as a client's log, do not matter, nor does the width of a table's columns.
    """
    said = map(_narrow, printed.splitlines())
    for line in shown.splitlines():
        pattern = ".*".join(map(re.escape, _narrow(line).split("…")))
        if not any(re.fullmatch(pattern, each) for each in said):
            return line
    return None


def _narrow(line: str) -> str:
    return re.sub(" {2,}", "  ", line.rstrip())


def all_blocks() -> list[Block]:
    return [block for document in (*DOCUMENTS, *EXAMPLES) for block in blocks(document)]
