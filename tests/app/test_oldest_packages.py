"""The oldest packages that pyproject.toml allows; all other tests use the newest.

Those of Spark are in tests/spark/test_spark_versions.py.
"""

import pytest
from environments import EXTRAS, PROJECT, environment, oldest, run_tests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_EXTRAS = ("compression", "encryption", "security", "otel")


def test_broker_and_client_do_the_same_with_the_oldest_versions_that_are_allowed() -> None:
    extras = [each for name in _EXTRAS for each in EXTRAS[name]]
    for_tests = (
        "pytest",
        "pytest-timeout",
        "hypothesis",
        "httpx",
        "pulsar-client[avro]",
        "prometheus-client",
        "pyyaml",
    )
    requirements = [*oldest([*PROJECT["dependencies"], *extras]), *for_tests]
    folders = [f"tests/{each}" for each in ("admin", "client", "security", "server", "wire")]
    unit = "not slow and not java and not spark and not go"
    run_tests(environment("oldest-broker", requirements), *folders, "-m", unit)
