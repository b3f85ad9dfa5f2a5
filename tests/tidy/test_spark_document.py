"""docs/spark.md against the code: its options are those of the table, its tests exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/spark.md").read_text()
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests" / "spark").glob("test_*.py"))


def test_every_reading_option_is_in_the_document() -> None:
    from pybroker.spark.options import OPTIONS, Mode

    missing = [
        option.name
        for option in OPTIONS
        if option.modes & Mode.READS and f"`{option.name}`" not in DOCUMENT
    ]
    assert not missing, f"docs/spark.md does not mention {', '.join(missing)}"


def test_every_feature_has_its_test() -> None:
    named = set(re.findall(r"`(test_\w+)`", DOCUMENT))
    assert named
    missing = [name for name in sorted(named) if f"def {name}(" not in TESTS]
    assert not missing, f"docs/spark.md names {', '.join(missing)}, which no test is called"
