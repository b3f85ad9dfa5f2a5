"""Documents quote the broker's output exactly."""

from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("document", "quoted", "source"),
    [
        ("docs/upgrading.md", "stopped; all data is on disk", "pybroker/process"),
        ("docs/upgrading.md", "written by a later version of pybroker", "managed_ledger"),
        ("docs/first-minute.md", "pybroker ready ", "pybroker/process"),
    ],
)
def test_a_quoted_line_is_printed(document: str, quoted: str, source: str) -> None:
    assert quoted in " ".join((PROJECT / document).read_text().split())
    sources = (PROJECT / source).rglob("*.py")
    assert any(quoted.strip() in path.read_text() for path in sources)
