"""Our boards for Grafana, and the files of compose that show them.

Every query must match a metric, with the labels that it selects by.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from scraped import Scrape

from pybroker.admin.metrics.table import METRICS

DOCKER = Path(__file__).resolve().parents[2] / "docker"
sys.path.append(str(DOCKER / "grafana"))

import generate  # noqa: E402

SELECTOR = re.compile(r"\b((?:pulsar|pybroker|process)_\w+)\{([^}]*)\}")
BOARDS = sorted((DOCKER / "grafana/boards").glob("*.json"))


def queries(board: dict[str, Any]) -> list[str]:
    of_variables = [variable["query"] for variable in board["templating"]["list"]]
    return of_variables + [t["expr"] for panel in board["panels"] for t in panel["targets"]]


def parsed(path: str) -> Any:
    return yaml.safe_load((DOCKER / path).read_text())


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_board_asks_for_what_there_is(path: Path, scraped: Scrape) -> None:
    for query in queries(json.loads(path.read_text())):
        selectors = SELECTOR.findall(query)
        assert selectors, query
        assert "@" not in query, "labels are missing"
        for name, labels in selectors:
            asked = set(re.findall(r"(\w+)=~?", labels))
            assert asked <= scraped.labels_of(name), query
        legend = set(re.findall(r"\bby \((\w+)\)", query))
        assert legend <= {"le", "topic"}


def test_the_boards_are_what_the_script_writes() -> None:
    assert {path.stem for path in BOARDS} == set(generate.ALL)
    for path in BOARDS:
        assert path.read_text() == generate.text(path.stem), "run docker/grafana/generate.py"


def test_our_own_metrics_are_on_a_board() -> None:
    text = "".join(path.read_text() for path in BOARDS)
    ours = {name for name in METRICS if name.startswith("pybroker_")}
    missing = {name for name in ours if name not in text}
    assert missing == {
        "pybroker_commit_bytes",
        "pybroker_commit_seconds_recent",  # the console shows it
        "pybroker_storage_refused_writes_total",
        "pybroker_txn_held_messages",
    }


def test_compose_starts_what_reads_these_files() -> None:
    compose = parsed("compose.yaml")
    for name in ("prometheus", "grafana"):
        service = compose["services"][name]
        assert service["profiles"] == ["demo"]
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (
                (DOCKER / source).exists()
                if source.startswith(".")
                else source in (compose["volumes"])
            )
    grafana = compose["services"]["grafana"]
    (provider,) = parsed("grafana/provisioning/dashboards/boards.yaml")["providers"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in grafana["volumes"]}
    boards = DOCKER / mounted[provider["options"]["path"]]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (boards / home.name).exists()


def test_prometheus_scrapes_the_broker_and_grafana_asks_prometheus() -> None:
    compose = parsed("compose.yaml")
    (job,) = parsed("prometheus.yaml")["scrape_configs"]
    ((target,),) = [config["targets"] for config in job["static_configs"]]
    host, _, port = target.partition(":")
    assert any(each.endswith(f":{port}") for each in compose["services"][host]["ports"])
    (source,) = parsed("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    board = json.loads(BOARDS[0].read_text())
    assert source["uid"] == board["panels"][0]["datasource"]["uid"]
    assert source["url"] == "http://prometheus:9090"
