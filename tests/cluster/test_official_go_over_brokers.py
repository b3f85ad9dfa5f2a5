"""The official Go client with a transactional id, on several brokers: `txn.session` names it."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "compat"))

from official_go import BUILD_TIMEOUT_S, SOURCES, GoTest, built, go_tests, run_go_test

pytestmark = [pytest.mark.go, pytest.mark.java, pytest.mark.timeout(BUILD_TIMEOUT_S)]


@pytest.mark.parametrize(
    "test", list(go_tests(SOURCES / "brokers_test.go")), ids=lambda test: test.name
)
def test_over_brokers_in_go(two_brokers: str, test: GoTest) -> None:
    built()
    run_go_test(test.name, {"SERVICE_URL": two_brokers})
