"""The official Go client with the broker; the tests themselves are in Go, in `go/`."""

import sys
from collections.abc import Iterator

import pytest
from official_go import BUILD_TIMEOUT_S, SOURCES, GoTest, built, go, go_tests, run_go_test

import pybroker.testing

pytestmark = [pytest.mark.go, pytest.mark.timeout(BUILD_TIMEOUT_S)]

# Tests with their own broker are in their own module.
ELSEWHERE = {"brokers_test.go", "logins_test.go", "restarts_test.go"}
OF_TIMEOUTS = "TestATransactionThatTimesOutIsAborted"  # advances the broker's clock
INTERCEPTORS = "org.apache.pulsar.common.intercept"
SETTINGS = {
    "broker_entry_metadata_interceptors": (
        f"{INTERCEPTORS}.AppendBrokerTimestampMetadataInterceptor",
        f"{INTERCEPTORS}.AppendIndexMetadataInterceptor",
    ),
    "exposing_broker_entry_metadata_to_client_enabled": True,
}


def everywhere() -> Iterator[GoTest]:
    for source in sorted(SOURCES.glob("*_test.go")):
        if source.name not in ELSEWHERE:
            yield from (test for test in go_tests(source) if test.name != OF_TIMEOUTS)


@pytest.fixture(scope="module")
def surroundings() -> Iterator[dict[str, str]]:
    built()
    with pybroker.testing.broker(http=True, **SETTINGS) as broker:
        yield {"SERVICE_URL": broker.service_url, "ADMIN_URL": broker.admin_url}


@pytest.mark.parametrize("test", list(everywhere()), ids=lambda test: test.name)
def test_in_go(surroundings: dict[str, str], test: GoTest) -> None:
    run_go_test(test.name, surroundings)


@pytest.fixture(scope="module")
def in_commit_order() -> Iterator[dict[str, str]]:
    built()
    with pybroker.testing.broker(http=True, transaction_buffer="commitOrder") as broker:
        yield {"SERVICE_URL": broker.service_url, "ADMIN_URL": broker.admin_url}


def in_any_order() -> Iterator[GoTest]:
    for test in go_tests(SOURCES / "transactions_test.go"):
        # It detects the timeout by a plain message, which commit order shows at once.
        if test.name != OF_TIMEOUTS:
            yield test


def test_timeouts_of_transactions_in_go() -> None:
    built()
    with pybroker.testing.broker(http=True, faults=True) as broker:
        run_go_test(OF_TIMEOUTS, {"SERVICE_URL": broker.service_url, "ADMIN_URL": broker.admin_url})


@pytest.mark.parametrize("test", list(in_any_order()), ids=lambda test: test.name)
def test_transactions_in_commit_order_in_go(in_commit_order: dict[str, str], test: GoTest) -> None:
    run_go_test(test.name, in_commit_order)


@pytest.mark.parametrize(
    "test", list(go_tests(SOURCES / "restarts_test.go")), ids=lambda test: test.name
)
def test_restart_in_go(test: GoTest) -> None:
    run_go_test(test.name, {"PYTHON": sys.executable})


def test_its_sources_are_formatted_and_vetted() -> None:
    assert go("-l", ".", tool="gofmt") == ""
    assert go("vet", "./...") == ""
