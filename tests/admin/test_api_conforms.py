"""Schemathesis tests a broker against the API's description, with valid and invalid requests.

It expects no internal error, and no undescribed status, content type or shape. The number of cases
is limited, not the time, so that a faster machine sends the same requests. Its import takes seconds
even if it is only installed, so it has a separate environment.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import pybroker.testing
from pybroker.client import Client
from pybroker.testing import RunningBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
SEED = 20_261_122
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
ENDS_THE_BROKER = "/admin/v2/brokers/shutdown"
# 501 is described for features that may be switched off.
CONFIG = '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "501"]\n'
TOPICS = "/admin/v2/persistent/public"


@pytest.fixture(scope="module")
def schemathesis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("schemathesis")
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    pip = [directory / "bin/python", "-m", "pip", "install", "--quiet", "schemathesis>=4.32,<5"]
    subprocess.run(pip, check=True)
    return directory / "bin/st"


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """A broker with an example of everything."""
    with (
        pybroker.testing.broker(http=True) as running,
        httpx.Client(base_url=running.admin_url) as admin,
        Client(running.service_url, enable_transaction=True) as client,
    ):
        assert admin.put("/admin/v2/namespaces/public/other").status_code == 204
        for namespace in ("default", "other"):
            assert admin.put(f"{TOPICS}/{namespace}/orders").status_code == 204
            path = f"{TOPICS}/{namespace}/parts/partitions"
            assert admin.put(path, json=2).status_code == 204
            for topic in ("orders", "parts"):
                _fill(admin, client, f"{namespace}/{topic}")
        yield running


def _fill(admin: httpx.Client, client: Client, topic: str) -> None:
    for subscription in ("audit", "other"):
        path = f"{TOPICS}/{topic}/subscription/{subscription}"
        assert admin.put(path, json="earliest").status_code == 204
    producer = client.create_producer(f"persistent://public/{topic}")
    for number in range(10):
        producer.send(b"%d" % number, partition_key=str(number))
    producer.send(b"open", txn=client.new_transaction(timeout_ms=900_000))


@pytest.mark.parametrize(
    ("phases", "examples"),
    [("coverage,fuzzing", 10), ("stateful", 300)],
    ids=["single", "stateful"],
)
def test_nothing_is_answered_that_is_not_described(
    schemathesis: Path, broker: RunningBroker, tmp_path: Path, phases: str, examples: int
) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    print(f"seed {SEED}")
    options = {
        "--phases": phases,
        "--checks": ",".join(CHECKS),
        "--seed": str(SEED),
        "--max-examples": str(examples),
        "--exclude-path": ENDS_THE_BROKER,
        "--suppress-health-check": "all",
        "--warnings": "off",
        "--request-timeout": "20",
        "--report": "har",
        "--report-har-path": str(tmp_path / "all.har"),
    }
    ran = subprocess.run(
        [
            schemathesis,
            *("--config-file", tmp_path / "config.toml", "run"),
            f"{broker.admin_url}/admin/openapi.json",
            *("--continue-on-failure", "--no-shrink"),
            *(word for option in options.items() for word in option),
        ],
        cwd=tmp_path,
        env=os.environ | {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2000:]
    entries = json.loads((tmp_path / "all.har").read_text())["log"]["entries"]
    well = [e for e in entries if e["response"]["status"] < 300]
    print(f"{len(entries)} requests, {len(well)} answered well")
    assert len(well) > len(entries) // 10, "hardly anything was found: what is there has no names"
