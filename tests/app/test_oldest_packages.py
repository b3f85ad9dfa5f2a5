"""The oldest packages that pyproject.toml allows; all other tests use the newest.

Those of Spark are in tests/spark/test_spark_versions.py.
"""

import json
import subprocess
from pathlib import Path

import pytest
from environments import EXTRAS, PROJECT, environment, oldest, run_tests

_EXTRAS = ("compression", "encryption", "security", "otel")
# The first version without an advisory that is known of earlier ones, and one of these.
_MENDED = {
    "protobuf": ((6, 33, 5), "CVE-2026-0994"),
    "starlette": ((1, 3, 1), "CVE-2025-62727, CVE-2026-48710, limits of forms"),
    "h11": ((0, 16), "CVE-2025-43859"),
    "jinja2": ((3, 1, 6), "CVE-2025-27516"),
    "cryptography": ((48, 0, 1), "GHSA-537c-gmf6-5ccf"),
    "pyjwt": ((2, 15), "CVE-2026-102268, CVE-2026-101918"),
}


def allowed() -> list[str]:
    """The oldest versions of what the broker and its client need: name==version."""
    extras = [each for name in _EXTRAS for each in EXTRAS[name]]
    return list(dict.fromkeys(oldest([*PROJECT["dependencies"], *extras])))


def test_no_version_with_a_known_advisory_is_allowed() -> None:
    versions = dict(each.split("==") for each in allowed())
    for name, (mended, advisory) in _MENDED.items():
        version = tuple(map(int, versions[name].split(".")))
        assert version >= mended, (name, version, advisory)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_database_of_advisories_has_none_of_the_oldest_versions(tmp_path: Path) -> None:
    """What the database cannot be asked about, pip-audit leaves out: the table above remains."""
    (tmp_path / "oldest.txt").write_text("\n".join(allowed()))
    audit = [environment("audit", ["pip-audit"]), "-m", "pip_audit", "--format=json"]
    said = subprocess.run(
        [*audit, "--no-deps", "--disable-pip", "-r", tmp_path / "oldest.txt"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(said.stdout)["dependencies"]
    assert len(found) == len(allowed()), said.stderr
    assert {each["name"]: each["vulns"] for each in found if each.get("vulns")} == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_broker_and_client_do_the_same_with_the_oldest_versions_that_are_allowed() -> None:
    for_tests = (
        "pytest",
        "pytest-timeout",
        "hypothesis",
        "httpx",
        "pulsar-client[avro]",
        "prometheus-client",
        "pyyaml",
    )
    requirements = [*allowed(), *for_tests]
    folders = [f"tests/{each}" for each in ("admin", "client", "security", "server", "wire")]
    unit = "not slow and not java and not spark and not go"
    run_tests(environment("oldest-broker", requirements), *folders, "-m", unit)
