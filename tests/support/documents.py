"""The code blocks of README, docs and examples, and how each is run.

A comment above a block exempts it from the block runner:

    <!-- runs in tests/x/test_y.py -->    a separate test runs it
    <!-- shows output -->                 output, which readers do not type
    <!-- not run: docker -->              why not: left_out.py
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENTS: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
EXAMPLES: Final = (ROOT / "examples/README.md", ROOT / "examples/simulated/README.md")
RUNS_IN: Final = re.compile(r"runs in (tests/[\w/]+\.py)")
OUTPUT: Final = "shows output"
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


def all_blocks() -> list[Block]:
    return [block for document in (*DOCUMENTS, *EXAMPLES) for block in blocks(document)]
