"""The report names every feature, every violation and every deliberate bug of the cluster."""

import re
from pathlib import Path

import features
from brokers import features as of_brokers
from brokers.bugs import BUGS

HERE = Path(__file__).parent
REPORT = (HERE.parents[1] / "tests/simulation/REPORT.md").read_text()
VIOLATION = re.compile(r'"([A-Z]{4,}(?: [A-Z]+)*)(?:: | at )')
# A condition that the simulation waits for: STUCK reports it.
NOT_REPORTED = {"NEVER DELIVERED"}


def rows_after(heading: str) -> list[str]:
    """The first cells of the first table after the heading, without its header."""
    lines = REPORT.partition(f"\n{heading}\n")[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    cells = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells.append(line.split("|")[1].strip())
    return cells


def sources() -> list[Path]:
    folders = ("checks", "clients", "features", "brokers")
    found = [path for folder in folders for path in sorted((HERE / folder).glob("*.py"))]
    return [*found, HERE / "sim_seed.py", HERE / "sim_broker.py"]


def test_every_feature_of_one_broker_is_described():
    assert sorted(rows_after("## Faults")) == sorted(features.ALL)


def test_every_feature_of_the_cluster_alone_is_described():
    own = [name for name in of_brokers.ALL if name not in features.ALL]
    assert sorted(rows_after("## Several brokers")) == sorted(own)


def test_the_cluster_s_deliberate_bugs_are_listed():
    assert sorted(rows_after("### Deliberate bugs of the cluster")) == sorted(BUGS)


def test_every_violation_is_named():
    named = {name for path in sources() for name in VIOLATION.findall(path.read_text())}
    assert len(named) > 50
    missing = [name for name in named - NOT_REPORTED if not re.search(rf"\b{name}\b", REPORT)]
    assert sorted(missing) == []
